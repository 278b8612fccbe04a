"""TRL's environments and reward functions, in files as TRL's users write them."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trl.rewards.format_rewards

from env.environments import environment_file_check
from env.environments.load import EnvironmentSpecError, environment_factory
from env.episodes.chat import TemplateChat
from env.episodes.episode import run_episode
from env.episodes.types import (
    EnvironmentFailedError,
    Episode,
    Limits,
    StopReason,
    Task,
    UnusableTaskError,
)
from env.registry import RewardSpecError, reward_function
from env.types import RewardRequest
from tests.support.chats import Scripted, calling, tokenizer

LIMITS = Limits(turns=5, prompt=5000, reply=900, observation=500, total=20_000, seconds=30)
COUNTER = '''\
import time

from trl_stand_in import GRPOTrainer


class Counter:
    def reset(self, target=3, **columns):
        self.total, self.target, self.columns = 0, target, columns
        return f" Reach {target}."

    def get_reward(self) -> float:
        return float(self.total == self.target)

    def add(self, number: int) -> int:
        """Add to the counter.

        Args:
            number: What is added.
        """
        if number == 13:
            raise ValueError("no luck")
        before = self.total
        time.sleep(0.02)
        self.total = before + number
        return self.total

    async def step(self) -> str:
        """Look at the counter."""
        return f"total {self.total}"

    def _private(self, x): ...


class Silent:
    def reset(self, **columns):
        self.columns = columns

    def look(self) -> dict:
        """Look around."""
        return {"columns": sorted(self.columns)}


def total(environments, completions, log_metric, **columns):
    log_metric("seen", 1.0)
    assert completions[0][0]["role"] == "assistant"
    assert completions[0][1]["role"] == "tool"
    return [one.total / 10 for one in environments]


async def none(environments, **columns):
    return [None]


SEVERAL = {"count": Counter, "look": Silent}
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "trl_stand_in.py").write_text("GRPOTrainer = None\n")
    path = tmp_path / "counter.py"
    path.write_text(COUNTER)
    return path


def episode_of(spec: str, replies: list[str], arguments: Any = None, **columns: Any) -> Episode:
    tokens = tokenizer("qwen2_5")
    task = Task(0, [{"role": "user", "content": "Count."}], columns=columns)
    environment = environment_factory(spec, arguments or {})()
    policy = Scripted(tokens, replies)
    return asyncio.run(run_episode(environment, task, TemplateChat(tokens), policy, LIMITS))


def answers(episode: Episode) -> list[str]:
    return [one["content"] for one in episode.messages if one["role"] == "tool"]


def test_public_methods_are_tools_and_the_object_rewards_itself(file: Path) -> None:
    assert not environment_file_check.environment(f"{file}:Counter").fault
    calls = calling("add", '{"number": 1}') + calling("add", '{"number": 4}') + calling("step")
    episode = episode_of(f"{file}:Counter", [calls, "Done."], target=5, answer="a")
    assert answers(episode) == ["1", "5", "total 5"]  # in order, though each call takes a while
    assert episode.messages[0]["content"] == "Count. Reach 5."
    assert episode.stop is StopReason.DONE
    last = max(i for i, is_action in enumerate(episode.action_mask) if is_action)
    assert episode.turn_rewards == {last: 1.0}
    assert episode.metrics["reward_Counter"] == 1.0
    for hidden in ("reset", "get_reward", "_private"):
        assert f'"name": "{hidden}"' not in episode.prompt
    assert '"name": "add"' in episode.prompt


def test_an_object_is_released_after_its_episode_and_after_its_trial(tmp_path: Path) -> None:
    ended = "    def __del__(self):\n        ENDED.append(threading.current_thread())\n"
    source = COUNTER.replace("class Counter:\n", f"class Counter:\n{ended}")
    (tmp_path / "trl_stand_in.py").write_text("GRPOTrainer = None\n")
    (tmp_path / "rollcall_test_ended.py").write_text("ENDED = []\n")
    (tmp_path / "counter.py").write_text(
        f"import threading\nfrom rollcall_test_ended import ENDED\n{source}"
    )
    factory = environment_factory(f"{tmp_path}/counter.py:Counter", {})
    ended_in = sys.modules["rollcall_test_ended"].ENDED
    assert len(ended_in) == 1
    environment, tokens = factory(), tokenizer("qwen2_5")
    task = Task(0, [{"role": "user", "content": "Count."}])
    policy = Scripted(tokens, ["Done."])
    asyncio.run(run_episode(environment, task, TemplateChat(tokens), policy, LIMITS))
    assert len(ended_in) == 2
    assert ended_in[1] is not threading.current_thread(), "it may take seconds"


def test_an_error_of_a_method_is_answered(file: Path) -> None:
    replies = [calling("add", '{"number": 13}'), calling("reset"), "Done."]
    episode = episode_of(f"{file}:Counter", replies)
    assert answers(episode)[0] == "Error: ValueError: no luck"
    assert "there is no tool 'reset'" in answers(episode)[1]
    assert list(episode.turn_rewards.values()) == [0.0]


def test_reward_functions_read_the_object(file: Path) -> None:
    arguments = {"reward_funcs": ["total", "none"]}
    replies = [calling("add", '{"number": 3}'), "Done."]
    episode = episode_of(f"{file}:Counter", replies, arguments)
    assert list(episode.turn_rewards.values()) == pytest.approx([1.3])
    assert episode.metrics["reward_total"] == pytest.approx(0.3)
    assert "reward_none" not in episode.metrics
    assert episode.metrics["seen"] == 1.0
    with pytest.raises(EnvironmentSpecError, match="no function other"):
        environment_factory(f"{file}:Counter", {"reward_funcs": ["other"]})


def test_a_row_chooses_among_several_environments(file: Path) -> None:
    spec = f"{file}:SEVERAL"
    episode = episode_of(spec, [calling("look"), "Done."], environment="look", answer="x")
    assert answers(episode) == ['{"columns": ["answer"]}']
    assert '"name": "add"' not in episode.prompt
    assert (episode.turn_rewards, episode.score) == ({}, None)  # the run's function scores it
    message = "the column 'environment' of the row is 'sing'; the environments are 'count', 'look'"
    with pytest.raises(UnusableTaskError, match=message):  # it is not tried again
        episode_of(spec, [], environment="sing")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("return float(", "return 1 / float(", r"Counter\.get_reward raised ZeroDivisionError"),
        ("return float(", "return float('nan') + float(", "the reward of Counter is nan"),
        ('return f" Reach', 'raise OSError("no game") #', r"Counter\.reset raised OSError"),
    ],
)
def test_a_failing_environment_is_named(file: Path, before: str, after: str, message: str) -> None:
    file.write_text(COUNTER.replace(before, after))
    with pytest.raises(EnvironmentFailedError, match=message):
        episode_of(f"{file}:Counter", ["Done."])


def test_a_method_without_a_description_is_no_tool(file: Path) -> None:
    file.write_text(COUNTER.replace("number: What is added.", ""))
    with pytest.raises(
        EnvironmentSpecError, match="made: add has no description of number below `Args:`"
    ):
        environment_factory(f"{file}:Counter", {})


def chat(content: str, **columns: Any) -> RewardRequest:
    messages = [{"role": "user", "content": "?"}]
    return RewardRequest(f"?{content}", "?", None, messages, columns, [1, 2])


def test_a_reward_function_of_trls_package() -> None:
    path = trl.rewards.format_rewards.__file__
    reward = reward_function(f"{path}:think_format_reward")
    scores = reward([chat("<think>a</think> b"), chat("b")])
    assert [score.reward for score in scores] == [1.0, 0.0]


def test_a_reward_function_that_a_file_imports_from_trl(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("from trl.rewards import accuracy_reward\n")
    asked = [chat(r"\boxed{5}", solution="$5$"), chat(r"\boxed{6}", solution="$5$")]
    scores = reward_function(f"{path}:accuracy_reward")(asked)
    assert [score.reward for score in scores] == [1.0, 0.0]


FUNCTIONS = """\
def right(completions, answer, prompts, completion_ids, log_extra, **columns):
    log_extra("length", [len(ids) for ids in completion_ids])
    assert prompts == ["2+3=", "1+1="]
    return [float(c == a) if a else None for c, a in zip(completions, answer)]

async def later(completions, **columns):
    return [2.0 for _ in completions]

def short(completions, **columns):
    return [1.0]
"""


def test_a_reward_function_gets_texts_and_columns(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(FUNCTIONS)
    asked = [
        RewardRequest(
            "2+3=5", "2+3=", columns={"answer": "5", "prompt": "2+3="}, completion_ids=[7]
        ),
        RewardRequest("1+1=5", "1+1=", columns={"answer": None}),
    ]
    first, second = reward_function(f"{path}:right")(asked)
    assert (first.reward, first.metrics) == (1.0, {"length": 1.0})
    assert not second.ok  # None is not a zero
    weighted = reward_function([f"{path}:later:0.5", f"{path}:later"])(asked)
    assert [score.reward for score in weighted] == [3.0, 3.0]
    assert "1 reward for 2" in reward_function(f"{path}:short")(asked)[0].error
    with pytest.raises(RewardSpecError, match="defines no function wrong"):
        reward_function(f"{path}:wrong")
