"""The thread of the environments: blocking code is named, and hanging code holds up no exit."""

from __future__ import annotations

import asyncio
import queue
import time
from dataclasses import replace
from pathlib import Path

import pytest

from env.environments.openrlhf_agent import AgentAttempt, SamplingParams, load_agent
from env.episodes.chat import PlainChat, TemplateChat
from env.episodes.environment import Environment
from env.episodes.episode import run_episode
from env.episodes.tools import ToolEnv
from env.episodes.types import (
    EnvironmentFailedError,
    Episode,
    Limits,
    Reply,
    StopReason,
    Task,
    Turn,
)
from tests.support.chats import Scripted, calling, tokenizer
from trainer.rollout import event_loop
from trainer.rollout.event_loop import EventLoop

TASK = Task(0, [{"role": "user", "content": "?"}])


class Blocking(Environment):
    async def step(self, reply: Reply) -> Turn:
        self.look_up()
        return Turn(done=True)

    def look_up(self) -> None:
        time.sleep(0.8)


class Patient(Environment):
    async def step(self, reply: Reply) -> Turn:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(time.sleep, 0.5)
        return Turn(done=True)


@pytest.mark.parametrize(("environment", "is_named"), [(Blocking(), True), (Patient(), False)])
def test_a_step_that_blocks_is_named(
    environment: Environment, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "BLOCKED_SECONDS", 0.2)
    warnings: queue.SimpleQueue[str] = queue.SimpleQueue()
    loop = EventLoop(warnings.put)
    tokens = tokenizer(None)
    policy = Scripted(tokens, ["a"])
    loop.start(run_episode(environment, TASK, PlainChat(tokens), policy, Limits())).result(30)
    loop.close()
    assert warnings.empty() is not is_named
    if is_named:
        said = warnings.get()
        assert said.startswith(f"Blocking.step ({Path(__file__)}:")
        assert ", in Blocking.look_up)" in said
        assert "asyncio.to_thread" in said


async def look(place: str) -> str:
    """Look at a place.

    Args:
        place: Where.
    """
    time.sleep(0.8)
    return place


AGENT = """\
import time

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    def __init__(self): ...

    async def step(self, states):
        time.sleep(0.8)
        return {"rewards": torch.tensor(1.0), "environment_feedback": "", "done": True}


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
"""


def test_a_tool_and_an_agent_that_block_are_named_by_their_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "BLOCKED_SECONDS", 0.2)
    warnings: queue.SimpleQueue[str] = queue.SimpleQueue()
    loop, tokens = EventLoop(warnings.put), tokenizer("qwen2_5")
    policy = Scripted(tokens, [calling("look", '{"place": "here"}'), "done"])
    chat = TemplateChat(tokens)
    loop.start(run_episode(ToolEnv([look]), TASK, chat, policy, Limits())).result(30)
    assert warnings.get(timeout=5).startswith(f"look ({__file__}:")
    (tmp_path / "agent.py").write_text(AGENT)
    params = SamplingParams(9, 1.0, 1.0)
    attempt = AgentAttempt(load_agent(tmp_path / "agent.py"), tokens, Limits(), params)
    loop.start(attempt(replace(TASK, text="2+3="), Scripted(tokens, "a"))).result(30)
    assert warnings.get(timeout=5).startswith(f"AgentInstance.step ({tmp_path}/agent.py:")
    loop.close()


def test_unfinished_episodes_are_closed_at_the_end() -> None:
    loop, closed = EventLoop(print), []

    class Waiting(Environment):
        async def reset(self, task: Task) -> list[dict[str, str]]:
            await asyncio.sleep(60)
            return []

        async def close(self) -> None:
            closed.append(True)

    tokens = tokenizer(None)
    future = loop.start(
        run_episode(Waiting(), TASK, PlainChat(tokens), Scripted(tokens, []), Limits())
    )
    time.sleep(0.1)
    loop.close()
    assert closed == [True]
    assert future.cancelled()


async def interrupted() -> None:
    raise KeyboardInterrupt


class Interrupted(Environment):
    """Has a task of its own, which would end the program."""

    async def step(self, reply: Reply) -> Turn:
        await asyncio.gather(interrupted(), asyncio.sleep(0))
        return Turn(done=True)


class Stopping(Environment):
    async def step(self, reply: Reply) -> Turn:
        asyncio.get_running_loop().stop()
        return Turn(done=True)


def test_no_environment_ends_the_loop_of_the_others() -> None:
    loop, tokens = EventLoop(print), tokenizer(None)

    def run(environment: Environment) -> Episode:
        policy = Scripted(tokens, ["a"])
        return loop.start(
            run_episode(environment, TASK, PlainChat(tokens), policy, Limits())
        ).result(10)

    with pytest.raises(EnvironmentFailedError, match=r"Interrupted\.step raised KeyboardInterrupt"):
        run(Interrupted())
    assert run(Stopping()).stop is StopReason.DONE
    assert run(Patient()).stop is StopReason.DONE
    loop.close()
