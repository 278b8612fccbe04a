"""A user's environment has an episode with a scripted reply before anything starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from env.environments.registry import given_in_python
from env.episodes.environment import Environment
from env.episodes.types import Reply, Turn
from tests.support.tiny_run import Tiny, to_argv
from trainer.config import code_findings, job_checks
from trainer.config.code_findings import CodeCheck, Tried, Trouble
from trainer.config.parse import parse
from trainer.rollout.try_code import try_environment, try_environment_here

ENVIRONMENTS = """
from env.episodes.environment import Environment
from env.episodes.types import Turn
from env.types import Score

class Twice(Environment):
    async def reset(self, task):
        self.label, self.turns = task.columns["answer"], 0
        return task.messages

    async def step(self, reply):
        self.turns += 1
        if self.turns == 1:
            return Turn([{"role": "user", "content": "1"}])
        return Turn(done=True, reward=float(self.label == reply.text))

class Misspelt(Twice):
    async def step(self, reply):
        return Turn(done=True, reward=self.lable)

class Number(Twice):
    async def step(self, reply):
        return 1.0

class Nothing(Twice):
    async def reset(self, task):
        return None

class Unpaired(Twice):
    async def reset(self, task):
        return [{"role": "user", "content": 3}]

class Licensed(Twice):
    async def step(self, reply):
        raise RuntimeError("no licence")

class Unmade(Twice):
    def __init__(self):
        self.table = {}["table"]

class Away(Twice):
    async def step(self, reply):
        raise ConnectionError("no game server")

class SecondRow(Twice):
    async def step(self, reply):
        return Turn(done=True, reward=1 / (int(self.label) - 1))

class Counting:
    def reset(self, **columns):
        self.calls = 0

    def get_reward(self):
        return 0.25

class Tooled(Twice):
    tools = [{"type": "function", "function": {"name": "add"}}]
"""
AGENT = """
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

class AgentInstance(AgentInstanceBase):
    async def __init__(self, *args, **kwargs): ...

    async def reset(self, states, **kwargs):
        return {"observation": states["observation"]}

    async def step(self, states, **kwargs):
        return {"rewards": 1.0, "scores": 1.0, "environment_feedback": NOTHING, "done": True}

class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
"""


def tried(tiny: Tiny, run: Path, **flags: Any) -> CodeCheck:
    given = tiny.needed(run) | {"remote_rm_url": None, "generate_max_len": 8} | flags
    config = parse(to_argv(given), absent=True)
    return code_findings.of([*try_environment(config, job_checks.first_rows(config))])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "world.py"
    path.write_text(ENVIRONMENTS)
    return path


@pytest.mark.parametrize("model", ["here", "Qwen/Qwen2.5-0.5B-Instruct"])
@pytest.mark.parametrize(
    ("name", "turns", "score"), [("Twice", "2 turns", 1.0), ("Counting", "1 turn", 0.25)]
)
def test_an_episode_is_played_with_the_rows_answer_as_each_reply(
    tiny: Tiny, file: Path, run_dir: Path, name: str, turns: str, score: float, model: str
) -> None:
    """Also if the model's tokeniser is on the hub, and not here."""
    flags = {"environment": f"{file}:{name}", "max_turns": 2}
    if model != "here":
        flags["pretrain"] = model
    if name == "Counting":
        flags["max_turns"] = 1
    found = tried(tiny, run_dir, **flags)
    assert found.troubles == ()
    (one,) = found.tried
    assert (one.what, one.score) == (f"{file}:{name}, {turns}", score)


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("Misspelt", "self.lable", "AttributeError: 'Misspelt' object has no attribute 'lable'"),
        ("Number", "return 1.0", "Number.step returned 1.0, where a Turn is wanted"),
        (
            "Nothing",
            "async def reset(self, task):\n        return None",
            "Nothing.reset returned None, where a list of messages with role and content is wanted",
        ),
        ("Licensed", 'RuntimeError("no licence")', "RuntimeError: no licence"),
        ("Unmade", '{}["table"]', "cannot be made: KeyError: 'table'"),
    ],
)
def test_an_environment_that_fails_in_each_episode_is_a_fault_with_its_line(
    tiny: Tiny, file: Path, run_dir: Path, name: str, line: str, said: str
) -> None:
    (fault,) = tried(tiny, run_dir, environment=f"{file}:{name}").troubles
    number = ENVIRONMENTS.partition(line)[0].count("\n") + 1
    assert fault.refuses
    assert said in str(fault)
    assert fault.place.rpartition(":")[2] in (str(number), str(number - 1))


def test_tools_without_a_chat_template_are_a_fault_of_the_model_and_not_of_the_file(
    tiny: Tiny, file: Path, run_dir: Path
) -> None:
    (fault,) = tried(tiny, run_dir, environment=f"{file}:Tooled").faults
    assert fault == (
        f"--environment {file}:Tooled: the model's tokeniser has no chat template, which the "
        "environment's tools need. Give --pretrain a model whose tokeniser has one, and "
        "--apply_chat_template"
    )


def test_an_environment_without_its_server_is_a_warning(
    tiny: Tiny, file: Path, run_dir: Path
) -> None:
    found = tried(tiny, run_dir, environment=f"{file}:Away")
    assert found.faults == []
    assert "4 of 4 episodes with a scripted reply failed" in found.warnings[0]


def test_a_fault_of_one_row_is_a_warning_and_the_next_row_is_played(
    tiny: Tiny, file: Path, run_dir: Path
) -> None:
    found = tried(tiny, run_dir, environment=f"{file}:SecondRow")
    assert found.faults == []
    assert "1 of 4 episodes" in found.warnings[0]
    assert "ZeroDivisionError" in found.warnings[0]
    assert [one.row for one in found.tried] == [2]


def test_an_object_that_hangs_is_a_warning_after_its_time(tiny: Tiny, run_dir: Path) -> None:
    class Hangs(Environment):
        async def step(self, reply: Reply) -> Turn:
            time.sleep(1)
            return Turn(done=True, reward=1.0)

    with given_in_python(Hangs) as name:
        config = parse(to_argv(tiny.needed(run_dir) | {"environment": name}), absent=True)
        rows = job_checks.first_rows(config)
        (played,) = try_environment_here(config, rows)
        (hung,) = try_environment_here(config, rows, seconds=0.1)
    assert isinstance(played, Tried)
    assert isinstance(hung, Trouble)
    assert not hung.refuses
    assert "it has not ended after 0.1 s" in hung.problem


def test_an_agent_is_run_with_the_models_tokeniser(
    tiny: Tiny, tmp_path: Path, run_dir: Path
) -> None:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    (fault,) = tried(tiny, run_dir, agent_func_path=path).faults
    assert f"NameError: name 'NOTHING' is not defined ({path}:11)" in fault
    found = tried(tiny, run_dir, agent_func_path=path, pretrain="Qwen/Qwen2.5-0.5B-Instruct")
    assert "needs the tokeniser of Qwen/Qwen2.5-0.5B-Instruct" in found.warnings[0]


def test_messages_that_the_chat_template_refuses_in_each_episode_are_a_fault(
    tiny: Tiny, file: Path, run_dir: Path
) -> None:
    flags = {"environment": f"{file}:Unpaired"}
    (fault,) = tried(tiny, run_dir, **flags).faults
    assert "the chat template refuses the messages of Unpaired" in fault


def test_an_environment_whose_episodes_nobody_can_score_is_refused(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    """One that may give a reward to another reply is warned of."""
    path = tmp_path / "mute.py"
    path.write_text(
        "from env.episodes.environment import Environment\n"
        "from env.episodes.types import Turn\n"
        "class Mute(Environment):\n"
        "    async def step(self, reply):\n"
        "        return Turn(done=True)\n"
        "class Rare(Environment):\n"
        "    async def step(self, reply):\n"
        "        return Turn(done=True, reward=1.0 if reply.text == 'x' else None)\n"
    )
    found = tried(tiny, run_dir, environment=f"{path}:Mute")
    (fault,) = found.faults
    assert f"its episode has no score, and there is no reward beside it ({path}:3). Give" in fault
    assert len(found.tried) == 4
    (warned,) = tried(tiny, run_dir, environment=f"{path}:Rare").troubles
    assert not warned.refuses
    assert "no score" in str(warned)
    scored = tried(tiny, run_dir, environment=f"{path}:Mute", remote_rm_url="arithmetic")
    assert scored.troubles == ()
