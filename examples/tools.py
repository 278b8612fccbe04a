r"""An environment of your own with a tool: the policy learns to call a calculator, not to guess.

python -m trainer --config examples/tiny.yaml --pretrain data/sums/model \
    --environment examples/tools.py:Calculator --max_len 24 --run_dir runs/tools

It begins with random weights, so that it knows no sums, and writes `=` in one reply of seven.

On a GPU, a model that has learned to call functions in JSON gets the same tool as a function:

rollcall --config examples/gsm8k-0.5b-one-gpu.yaml --environment examples/tools.py:Functions \
    --max_turns 4 --max_len 2048
"""

from __future__ import annotations

from rollcall import Environment, Episode, Messages, Reply, Score, Task, ToolEnv, Turn


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


class Calculator(Environment):
    """Sums such as `12+7=`. A reply `=` calls the calculator; any other reply is the answer."""

    stops = ("=",)  # a reply ends here, so that the tool can answer

    async def reset(self, task: Task) -> Messages:
        self.question = str(task.columns["prompt"]).rstrip("=")
        self.right = task.label
        self.answer = ""
        return task.messages

    async def step(self, reply: Reply) -> Turn:
        if reply.text != "=":
            self.answer = reply.text
            return Turn(done=True, metrics={"calls": 0.0})
        first, second = self.question.split("+")
        self.answer = str(add(int(first), int(second)))
        return Turn(text=self.answer, done=True, metrics={"calls": 1.0})

    async def score(self, episode: Episode) -> Score:
        return Score.of(float(self.answer == self.right))


class Functions(ToolEnv):
    """The tool for a chat template with tools. The reward function of the run scores the answer."""

    def __init__(self) -> None:
        super().__init__([add])
