"""Failing environments: named, limited in time, and no other episode has a part in it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from env.episodes import attempts
from env.episodes import episode as episode_module
from env.episodes.attempts import EnvironmentAttempt, EpisodeRunner, OnFailure
from env.episodes.chat import PlainChat, TemplateChat
from env.episodes.environment import Environment
from env.episodes.episode import run_episode
from env.episodes.types import (
    EnvironmentFailedError,
    Episode,
    Reply,
    StopReason,
    Task,
    Turn,
)
from env.types import Messages, Score, ScoreStatus
from tests.support.chats import Scripted, tokenizer
from tests.support.environments import LIMITS, TASK, Answering, Wrong, run, said


class Changing(Answering):
    """Changes the tokens of a finished episode."""

    async def score(self, episode: Episode) -> Score:
        episode.tokens.append(0)
        return Score.of(1.0)


class Crediting(Answering):
    """Rewards a turn that the episode does not have."""

    async def score(self, episode: Episode) -> Score:
        episode.turn_rewards[1_000_000] = 1.0
        return Score.of(1.0)


class OtherSignature(Answering):
    async def step(self) -> Turn:  # type: ignore[override]
        return Turn(done=True)


class Plain(Answering):
    def step(self, reply: Reply) -> Turn:  # type: ignore[override]
        return Turn(done=True)


class Missing(Answering):
    step = Environment.step


async def forgotten() -> str:
    return "never awaited"


class Forgets(Answering):
    async def step(self, reply: Reply) -> Turn:
        return forgotten()  # type: ignore[return-value]


class ForgetsInside(Answering):
    async def step(self, reply: Reply) -> Turn:
        return Turn([{"role": "user", "content": forgotten()}])


OK = ScoreStatus.OK
TURN = Turn(done=True)
WRONG = [
    (Wrong("reset", "text"), "list of messages"),
    (Wrong("reset", [{"role": "user"}]), "list of messages"),
    (Wrong("step", None), "Turn is wanted"),
    (Wrong("step", Turn(reward=float("nan"))), "the reward is nan"),
    (Wrong("step", Turn(reward="good")), "the reward is 'good'"),  # type: ignore[arg-type]
    (Wrong("step", Turn(metrics={"hits": "many"})), "could not convert"),  # type: ignore[dict-item]
    (Wrong("step", Turn(text=3)), "returned a Turn whose text is 3"),  # type: ignore[arg-type]
    (Wrong("reset", [{"role": "user", "content": 3}]), "the chat template refuses the messages"),
    (Wrong("score", Score.of(float("nan"))), "the reward is nan"),
    (Wrong("score", Score(OK, "good")), "the reward 'good' is a text"),  # type: ignore[arg-type]
    (Wrong("score", Score(OK, None)), "the reward None is"),  # type: ignore[arg-type]
    (Wrong("score", Score(OK, 1.0, {"hits": "many"})), "is a text"),  # type: ignore[dict-item]
    (Wrong("step", Turn([{"text": 1}])), "list of messages"),
    (Wrong("reset", said("one")[0]), "list of messages"),
    (Wrong("step", Turn(said("one")[0])), "list of messages"),  # type: ignore[arg-type]
    (Wrong("score", 1.0), "Score is wanted"),
    (Answering(ZeroDivisionError("no")), r"Answering.step raised ZeroDivisionError: no"),
    (Changing(Turn(done=True)), r"Changing.score has changed the episode's tokens"),
    (Crediting(Turn(done=True)), r"Crediting.score gives a reward to token 1000000"),
    (Answering(SystemExit(3)), r"Answering.step raised SystemExit: 3"),
    (Answering(KeyboardInterrupt()), r"Answering.step raised KeyboardInterrupt"),
    (Answering(BaseException("odd")), r"Answering.step raised BaseException: odd"),
    (OtherSignature(Turn(done=True)), r"OtherSignature.step raised TypeError: .*positional"),
    (Plain(TURN), "Plain.step is not async: write `async def step`"),
    (Missing(TURN), r"NotImplementedError: give Missing a method `async def step\(self, reply\)`"),
    (Forgets(TURN), "Forgets.step returned the coroutine forgotten: write `await` before its call"),
    (ForgetsInside(TURN), "a message whose content is the coroutine forgotten: write `await`"),
]


@pytest.mark.parametrize(("environment", "message"), WRONG)
def test_a_failing_environment_is_named(environment: Answering, message: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=message):
        run(environment, ["a"])
    assert environment.closed == 1


@pytest.mark.parametrize(
    ("seconds", "raised"),
    [
        (10.0, None),
        (0.0, SystemExit(3)),
        (0.0, KeyboardInterrupt()),
        (0.0, asyncio.CancelledError()),  # of a task that it has cancelled and awaits
    ],
)
def test_an_environment_that_does_not_close_holds_up_nobody(
    seconds: float, raised: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_module, "CLOSE_SECONDS", 0.05)

    class Open(Answering):
        async def close(self) -> None:
            self.closed += 1
            await asyncio.sleep(seconds)
            if raised:
                raise raised
            self.closed += 1

    environment = Open(Turn(done=True))
    episode, _, _ = run(environment, ["a"])
    assert (episode.stop, episode.score) == (StopReason.DONE, Score.of(1.0))
    assert environment.closed == 1


class Stubborn(Answering):
    """Tries again whatever happens, also if it is cancelled."""

    def __init__(self, method: str) -> None:
        super().__init__(Turn(done=True))
        setattr(self, method, self.forever)
        self.is_over = False

    async def forever(self, *_: Any) -> None:
        while not self.is_over:
            with suppress(BaseException):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("method", ["reset", "step", "score"])
def test_an_environment_that_cannot_be_cancelled_holds_up_nobody(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_module, "CLOSE_SECONDS", 0.05)
    tokens = tokenizer("qwen2_5")
    limits = replace(LIMITS, seconds=0.05)

    async def episode(environment: Stubborn) -> Episode:
        policy = Scripted(tokens, "a")
        try:
            return await run_episode(environment, TASK, TemplateChat(tokens), policy, limits)
        finally:
            environment.is_over = True

    with pytest.raises(EnvironmentFailedError, match=rf"Stubborn\.{method} goes on .* cancelled"):
        asyncio.run(asyncio.wait_for(episode(Stubborn(method)), 5))
    assert asyncio.run(asyncio.wait_for(episode(Stubborn("close")), 5)).stop is StopReason.DONE


@pytest.mark.parametrize("wrong", ["", 3])
def test_a_stop_string_that_is_none_is_refused(wrong: Any) -> None:
    environment = Answering(Turn(done=True))
    environment.stops = ("</answer>", wrong)
    with pytest.raises(EnvironmentFailedError, match=r"Answering\.stops has"):
        run(environment, ["a"])


class Unready(Answering):
    @property
    def stops(self) -> tuple[str, ...]:  # type: ignore[override]
        raise LookupError("no phase yet")


def test_stop_strings_that_cannot_be_read_fail_the_episode_alone() -> None:
    environment = Unready(Turn(done=True))
    with pytest.raises(EnvironmentFailedError, match=r"Unready\.stops raised LookupError: no"):
        run(environment, ["a"])
    assert environment.closed == 1
    other = Answering(Turn(done=True))
    other.stops = 3  # type: ignore[assignment]
    with pytest.raises(EnvironmentFailedError, match=r"Answering\.stops raised TypeError"):
        run(other, ["a"])


class Slow(Environment):
    async def reset(self, task: Task) -> Messages:
        await asyncio.sleep(10)
        return ()


def test_a_reset_without_end_is_a_failure() -> None:
    with pytest.raises(EnvironmentFailedError, match=r"Slow\.reset .* took 0\.05 s"):
        run(Slow(), [], replace(LIMITS, seconds=0.05))


class Failing(Environment):
    """Fails in its first episodes."""

    left = 0

    async def step(self, reply: Reply) -> Turn:
        type(self).left -= 1
        if type(self).left >= 0:
            raise OSError("no retriever")
        return Turn(done=True)


def attempt(on_failure: OnFailure, failures: int) -> Episode:
    Failing.left = failures
    tokens = tokenizer("qwen2_5")
    chat = TemplateChat(tokens)
    runner = EpisodeRunner(EnvironmentAttempt(Failing, chat, LIMITS), chat, 99, on_failure)
    return asyncio.run(runner.run(TASK, lambda: Scripted(tokens, ["a"] * 9)))


@pytest.mark.parametrize("messages", [[], said("")])
def test_a_first_context_without_a_token_is_a_failure(messages: Messages) -> None:
    tokens = tokenizer(None)
    policy = Scripted(tokens, "a")
    with pytest.raises(EnvironmentFailedError, match="the first context has no token"):
        asyncio.run(run_episode(Wrong("reset", messages), TASK, PlainChat(tokens), policy, LIMITS))


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


ODD = [
    (Answering(UnreadableError()), "the episode raised LookupError: no text"),
    (Answering(Turn(done=True, reward=10**400)), "the reward is 1000"),
    (Answering(ValueError("x" * 1_000_000)), "Answering.step raised ValueError: xxx"),
    (Answering(EnvironmentFailedError("x" * 1_000_000)), "xxx"),
]


@pytest.mark.parametrize(("environment", "reason"), ODD)
def test_what_an_environment_raises_is_a_short_reason(
    environment: Answering, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tokenizer("qwen2_5")
    chat = TemplateChat(tokens)
    attempt = EnvironmentAttempt(lambda: environment, chat, LIMITS)
    runner = EpisodeRunner(attempt, chat, 99, OnFailure.DROP)
    episode = asyncio.run(runner.run(TASK, lambda: Scripted(tokens, "a")))
    assert episode.stop is StopReason.FAILED
    assert episode.score is not None
    assert reason in episode.score.error
    assert len(episode.score.error) < 1000
    (record,) = caplog.records  # with a traceback if only that says where it was raised
    assert bool(record.exc_info) == ("the episode raised" in reason)


class Changer(Environment):
    """Changes its task, as a user's code may."""

    async def reset(self, task: Task) -> Messages:
        first: Any = task.messages[0]
        first["content"] += "!"
        self.answer = dict(task.columns)["answer"].pop()
        return task.messages

    async def step(self, reply: Reply) -> Turn:
        return Turn(done=True, reward=float(self.answer))


def test_an_episode_that_changes_its_task_changes_no_other() -> None:
    tokens = tokenizer("qwen2_5")
    chat = TemplateChat(tokens)
    task = Task(0, said("2+3"), columns={"answer": [5]})
    runner = EpisodeRunner(EnvironmentAttempt(Changer, chat, LIMITS), chat, 99, OnFailure.DROP)
    for _ in range(2):
        episode = asyncio.run(runner.run(task, lambda: Scripted(tokens, "a")))
        assert list(episode.turn_rewards.values()) == [5.0]
        assert episode.messages[0]["content"] == "2+3!"
    assert task == Task(0, said("2+3"), columns={"answer": [5]})


def test_an_outage_is_logged_once_for_many_episodes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokens, Failing.left = tokenizer("qwen2_5"), 40
    chat = TemplateChat(tokens)
    attempt = EnvironmentAttempt(Failing, chat, LIMITS)
    runner = EpisodeRunner(attempt, chat, 99, OnFailure.DROP)

    def run_all() -> None:
        for _ in range(20):
            asyncio.run(runner.run(TASK, lambda: Scripted(tokens, "a")))

    run_all()
    monkeypatch.setattr(attempts, "SECONDS_BETWEEN_LINES", 0.0)
    run_all()
    first, second = caplog.messages[:2]
    assert first.startswith("The episode of row 1 is dropped: Failing.step raised OSError")
    assert second.endswith("19 other episodes failed before.")


def test_a_failure_is_a_status_by_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "PAUSES", (0.0, 0.0))
    assert attempt(OnFailure.RETRY, 2).stop is StopReason.DONE
    for dropped in (attempt(OnFailure.RETRY, 3), attempt(OnFailure.DROP, 1)):
        assert dropped.stop is StopReason.FAILED
        assert dropped.score is not None
        assert not dropped.score.ok
        assert "no retriever" in dropped.score.error
        assert dropped.tokens
        assert not any(dropped.action_mask)
    with pytest.raises(EnvironmentFailedError, match="no retriever"):
        attempt(OnFailure.FAIL, 1)


class Cancelling(Environment):
    """Awaits a task that it has cancelled, as a client whose connection has closed may do."""

    async def step(self, reply: Reply) -> Turn:
        call = asyncio.ensure_future(asyncio.sleep(9))
        call.cancel()
        await call
        return Turn(done=True)


def runner_of(environment: type[Environment]) -> tuple[EpisodeRunner, Any]:
    tokens = tokenizer("qwen2_5")
    chat = TemplateChat(tokens)
    attempt = EnvironmentAttempt(environment, chat, LIMITS)
    return EpisodeRunner(attempt, chat, 99, OnFailure.DROP), tokens


def test_a_cancelled_call_of_an_environment_is_a_failure() -> None:
    runner, tokens = runner_of(Cancelling)
    dropped = asyncio.run(runner.run(TASK, lambda: Scripted(tokens, ["a"])))
    assert dropped.stop is StopReason.FAILED
    assert dropped.score is not None
    assert "CancelledError" in dropped.score.error


class Ending(Environment):
    def __init__(self) -> None:
        raise SystemExit(0)


def test_an_environment_that_would_end_the_program_is_a_failure() -> None:
    runner, tokens = runner_of(Ending)
    dropped = asyncio.run(runner.run(TASK, lambda: Scripted(tokens, ["a"])))
    assert dropped.score is not None
    assert "cannot be made: SystemExit: 0" in dropped.score.error


def test_an_episode_that_is_cancelled_ends() -> None:
    runner, _ = runner_of(Slow)

    async def cancelled() -> None:
        episode = asyncio.ensure_future(runner.run(TASK, lambda: Scripted(None, [])))
        await asyncio.sleep(0.01)
        episode.cancel()
        await episode

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
