"""What an environment is, and the environment of a single turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from env.episodes.types import Episode, Reply, Task, ToolSpec, Turn
from env.types import Messages, RewardFunction, RewardRequest, Score


class Environment:
    """A world that answers the policy. Each episode has an instance of its own.

    Hundreds of episodes share one thread. A method that waits must therefore `await`; blocking
    code belongs into `asyncio.to_thread`.
    """

    tools: Sequence[ToolSpec] = ()
    """Tools for the chat template."""
    stops: Sequence[str] = ()
    """Strings that end a reply of the policy."""

    async def reset(self, task: Task) -> Messages:
        """Return the first messages of the chat: those of the task, unless overridden."""
        return task.messages

    async def step(self, reply: Reply) -> Turn:
        """Return the answer to a reply of the policy."""
        raise NotImplementedError(
            f"give {type(self).__name__} a method `async def step(self, reply)`"
        )

    async def score(self, episode: Episode) -> Score | None:
        """Return the score of a finished episode. None: the run's reward function scores it."""
        return None

    async def close(self) -> None:
        """Release what the episode holds. It is called at the end of every episode."""


EnvironmentFactory = Callable[[], Environment]
"""Makes the environment of one episode."""


class SingleTurn(Environment):
    """One reply, scored by a reward function."""

    def __init__(self, reward: RewardFunction | None = None) -> None:
        """`reward`: None leaves the score to the run's reward function, which scores batches."""
        self._reward = reward

    async def step(self, reply: Reply) -> Turn:
        return Turn(done=True)

    async def score(self, episode: Episode) -> Score | None:
        if self._reward is None:
            return None
        (score,) = await asyncio.to_thread(self._reward, [request_of(episode)])
        return score


def request_of(episode: Episode) -> RewardRequest:
    """Return what reward functions are asked about an episode."""
    task = episode.task
    start = episode.action_mask.index(True) if any(episode.action_mask) else len(episode.tokens)
    return RewardRequest(
        episode.prompt + episode.text,
        episode.prompt,
        task.label,
        tuple(task.messages),
        task.columns,
        episode.tokens[start:],
    )
