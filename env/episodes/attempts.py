"""Episodes with a policy for failures: again from the task, dropped, or the end of the run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from env.episodes.chat import Chat
from env.episodes.environment import EnvironmentFactory
from env.episodes.episode import is_cancelled, run_episode
from env.episodes.types import (
    EnvironmentFailedError,
    Episode,
    Generate,
    Limits,
    StopReason,
    Task,
    UnusableTaskError,
    WrongReturnError,
)
from env.types import RewardRequest, Score
from env.user_code import Raised

PAUSES = (1.0, 4.0, 16.0)
"""Seconds before each new attempt of an episode."""

logger = logging.getLogger(__name__)


class OnFailure(StrEnum):
    """What follows if an environment fails."""

    RETRY = "retry"
    """The episode begins again from its task; after the last attempt it is dropped."""
    DROP = "drop"
    """The episode has a failed score: it is not trained on, and is never counted as zero."""
    FAIL = "fail"
    """The run ends."""


class UnexpectedError(EnvironmentFailedError):
    """What no check has found. Its traceback is logged."""


SECONDS_BETWEEN_LINES = 10.0
"""Shortest pause between two lines about failures: an outage fails hundreds of episodes at once."""


@dataclass(slots=True)
class _Log:
    """Logs failures of episodes, and counts those between two lines."""

    at: float = float("-inf")
    unlogged: int = 0

    def __call__(self, task: Task, outcome: str, error: EnvironmentFailedError) -> None:
        if time.monotonic() - self.at < SECONDS_BETWEEN_LINES:
            self.unlogged += 1
            return
        others = f" {self.unlogged} other episodes failed before." if self.unlogged else ""
        trace = error if isinstance(error, UnexpectedError) else None
        logger.warning(
            "The episode of row %d %s: %s.%s",
            task.index + 1,
            outcome,
            error,
            others,
            exc_info=trace,
        )
        self.at, self.unlogged = time.monotonic(), 0


class Attempt(Protocol):
    """One attempt at an episode. Raises EnvironmentFailedError."""

    async def __call__(self, task: Task, generate: Generate) -> Episode: ...


@dataclass(frozen=True, slots=True)
class EnvironmentAttempt:
    """An attempt with an environment of its own."""

    factory: EnvironmentFactory
    chat: Chat
    limits: Limits

    async def __call__(self, task: Task, generate: Generate) -> Episode:
        try:
            environment = self.factory()
        except BaseException as error:
            raise EnvironmentFailedError(
                f"the environment cannot be made: {type(error).__name__}: {error}"
            ) from error
        return await run_episode(environment, task, self.chat, generate, self.limits)


@dataclass(frozen=True, slots=True)
class EpisodeRunner:
    """Runs the episodes of a training run."""

    attempt: Attempt
    chat: Chat
    longest_prompt: int
    """Tokens of the first context."""
    on_failure: OnFailure = OnFailure.RETRY
    has_reward: bool = True
    """Whether the run has a reward function for episodes that the environment does not score."""
    log: _Log = field(default_factory=_Log)

    async def run(self, task: Task, policy: Callable[[], Generate]) -> Episode:
        """Return the finished episode of a task. A dropped episode has a failed score.

        `policy`: returns what generates the replies of one attempt. Raises EnvironmentFailedError
        if the run is to end.
        """
        try:
            episode = await self._attempted(task, policy)
        except EnvironmentFailedError as error:
            if self.on_failure is OnFailure.FAIL:
                raise
            self.log(task, "is dropped", error)
            return self._dropped(task, error)
        if episode.score is None and episode.turn_rewards and not self.has_reward:
            episode.score = Score.of(0.0)  # the rewards of its turns are all that there is
        return episode

    async def _attempted(self, task: Task, policy: Callable[[], Generate]) -> Episode:
        for pause in PAUSES if self.on_failure is OnFailure.RETRY else ():
            try:
                return await self._once(task, policy())
            except UnusableTaskError:
                raise
            except EnvironmentFailedError as error:
                self.log(task, "begins again", error)
            await asyncio.sleep(pause)
        return await self._once(task, policy())

    async def _once(self, task: Task, generate: Generate) -> Episode:
        try:
            return await self.attempt(task.copied(), generate)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise  # the run ends
            raise EnvironmentFailedError(
                "the environment raised CancelledError: it awaits a call that something has "
                "cancelled"
            ) from error
        except (EnvironmentFailedError, GeneratorExit):
            raise
        except BaseException as error:  # another episode has no part in it
            raise UnexpectedError(f"the episode raised {type(error).__name__}: {error}") from error

    def _dropped(self, task: Task, error: EnvironmentFailedError) -> Episode:
        """Return an episode that has no action, so that nothing of it is trained on."""
        score = Score.failed(str(error), raised_by(error))
        episode = Episode(task=task, stop=StopReason.FAILED, score=score)
        # The messages may be what the chat template refuses.
        episode.observe(self.chat.encode(task.text or " ")[-self.longest_prompt :])
        return episode


def raised_by(error: BaseException) -> Raised | None:
    """Return what a user's code raised, if that is why an episode failed."""
    method = error.method if isinstance(error, WrongReturnError) else None
    method = error.code if isinstance(error, UnusableTaskError) else method
    root = error
    while root.__cause__ is not None and isinstance(root, RuntimeError):
        root = root.__cause__  # what wraps it is of this product
    if root is error and method is None:
        return None
    return Raised.of(root, method)


def without_reward(requests: Sequence[RewardRequest]) -> list[Score]:
    """The RewardFunction of a run that has none: its environment must score the episodes."""
    reason = "the environment gives neither a score nor rewards of turns: give --remote_rm_url"
    return [Score.failed(reason)] * len(requests)
