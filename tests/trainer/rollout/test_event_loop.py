"""The thread of the environments: blocking code is named, and hanging code holds up no exit."""

from __future__ import annotations

import asyncio
import queue
import time
from pathlib import Path

import pytest

from env.episodes.chat import PlainChat
from env.episodes.environment import Environment
from env.episodes.episode import run_episode
from env.episodes.types import (
    EnvironmentFailedError,
    Episode,
    Limits,
    Reply,
    StopReason,
    Task,
    Turn,
)
from tests.support.chats import Scripted, tokenizer
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
