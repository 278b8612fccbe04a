"""Episodes of many environments at once, with the same interface as the engines' dispatcher.

An episode is a coroutine in the event loop's thread. When it needs a reply of the policy, it queues
a turn. The driver gives queued turns to the engines as partial rollouts, and hands finished turns
back. So a slow tool holds up its own episode only, and engines rest whenever the driver does not
give them work: during weight updates, evaluations and checkpoints.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial as bound
from itertools import chain, count
from queue import SimpleQueue

import numpy as np

from contract.journal import WriteEvent
from env.episodes.attempts import EpisodeRunner
from env.episodes.types import (
    Context,
    EnvironmentFailedError,
    Episode,
    Generate,
    Generated,
    ReplyStop,
    StopReason,
)
from trainer.algorithms.seeds import derive
from trainer.rollout.dispatcher import Dispatcher
from trainer.rollout.event_loop import EventLoop
from trainer.types import (
    Completion,
    FinishedRollout,
    Key,
    PartialRollout,
    Seed,
    TrainingError,
)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A reply that an episode waits for."""

    episode: Key
    seed: Seed
    context: Context
    reply: asyncio.Future[Completion]


@dataclass(frozen=True, slots=True)
class EpisodeSetup:
    """How a run has its episodes run."""

    runner: EpisodeRunner
    tell: WriteEvent
    """Writes what a user should know of an environment into the journal."""
    deterministic: bool = False
    """Write all turns in lockstep, so that a run repeats to the bit."""


class EpisodeDispatcher:
    def __init__(self, turns: Dispatcher, setup: EpisodeSetup, *, lockstep: bool = False) -> None:
        """`turns`: writes replies.

        `lockstep`: give turns to the engines only when all episodes wait for one. The engines'
        batches then do not depend on the time of tools, and a run repeats to the bit.
        """
        self._turns = turns
        self._runner = setup.runner
        self._tell = setup.tell
        self._lockstep = lockstep
        self._loop: EventLoop | None = None
        self._asked: SimpleQueue[_Turn] = SimpleQueue()
        self._ended: SimpleQueue[tuple[Key, Future[Episode]]] = SimpleQueue()
        self._news = threading.Event()
        """Set when an episode has asked or ended."""
        self._alive: set[Key] = set()
        self._queued: list[_Turn] = []
        self._writing: dict[Key, _Turn] = {}
        """Turns that engines write, by the key of their partial rollout."""
        self._homes: dict[Key, int | None] = {}
        """The engine that wrote the newest reply of an episode."""
        self._numbers = count()

    @property
    def busy(self) -> bool:
        return bool(self._alive)

    @property
    def stalled(self) -> bool:
        return self._turns.stalled

    def give(self, groups: Sequence[Sequence[PartialRollout]]) -> None:
        """Begin the episodes of these groups. Each partial rollout has a task and no tokens."""
        if self._loop is None:
            self._loop = EventLoop(lambda sentence: self._tell("blocking-environment", sentence))
        for partial in chain.from_iterable(groups):
            self._alive.add(partial.key)
            future = self._loop.start(self._episode(partial))
            future.add_done_callback(bound(self._end, partial.key))

    async def _episode(self, partial: PartialRollout) -> Episode:
        """Run an episode. It begins at its task, also after a checkpoint."""
        assert partial.task is not None, "a partial rollout without a task is not an episode"
        return await self._runner.run(partial.task, lambda: self._policy(partial))

    def _policy(self, partial: PartialRollout) -> Generate:
        """Return what generates the replies of an attempt. Every attempt has the same seeds."""
        replies = count()

        async def generate(context: Context) -> Generated:
            number = next(replies)
            seed = partial.seed
            if number and seed is not None:
                seed = derive(seed, "turn", number)
            reply: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
            self._asked.put(_Turn(partial.key, seed, context, reply))
            self._news.set()
            return generated(context, await reply)

        return generate

    def _end(self, key: Key, done: Future[Episode]) -> None:
        self._ended.put((key, done))
        self._news.set()

    def work(self, seconds: float) -> list[FinishedRollout]:
        """Keep the engines busy. Returns the episodes that have ended, after at most `seconds`."""
        self._news.clear()
        self._release()
        self._deliver(self._turns.work(seconds if self._turns.busy else 0.0))
        if not self._turns.busy and self._alive:
            self._news.wait(seconds)
        return self._taken()

    def finish(self) -> list[FinishedRollout]:
        """Have the engines finish the turns that they have begun. Returns what has ended."""
        self._deliver(self._turns.finish())
        return self._taken()

    def settle(self) -> list[FinishedRollout]:
        """Wait until engines rest. Environments continue. Returns what has ended."""
        self._deliver(self._turns.settle())
        return self._taken()

    def partials(self) -> list[PartialRollout]:
        """Return nothing: an unfinished episode begins again from its task."""
        return []

    def close(self) -> None:
        """Close the environments of unfinished episodes."""
        if self._loop is not None:
            self._loop.close()

    def _release(self) -> None:
        """Give the engines the turns that episodes wait for. First turns of a group go together."""
        while not self._asked.empty():
            self._queued.append(self._asked.get())
        ended = self._ended.qsize()
        waiting = len({turn.episode for turn in self._queued})
        if self._lockstep and (self._writing or waiting + ended < len(self._alive)):
            return
        turns, self._queued = sorted(self._queued, key=lambda turn: turn.episode), []
        numbers = defaultdict[int, int](lambda: next(self._numbers))
        groups: dict[int, list[PartialRollout]] = defaultdict(list)
        alone: list[list[PartialRollout]] = []
        for turn in turns:
            group, index = turn.episode
            key, home = (numbers[group], index), self._homes.get(turn.episode)
            is_second = key in self._writing  # an agent may ask for several replies at once
            key = (next(self._numbers), index) if is_second else key
            self._writing[key] = turn
            partial = PartialRollout(key, "", turn.seed, context=turn.context, home=home)
            if home is None and not is_second:
                groups[group].append(partial)
            else:
                alone.append([partial])
        if turns:
            self._turns.give([*groups.values(), *alone])

    def _deliver(self, finished: Sequence[FinishedRollout]) -> None:
        for rollout in finished:
            turn = self._writing.pop(rollout.key)
            self._homes[turn.episode] = rollout.engine
            # An agent may wait in a loop of its own, such as that of a server, which may be closed.
            with suppress(RuntimeError):
                loop = turn.reply.get_loop()
                loop.call_soon_threadsafe(_resolve, turn.reply, rollout.completion)

    def _taken(self) -> list[FinishedRollout]:
        """Return the episodes that have ended. Raises TrainingError if a failure ends the run."""
        finished = []
        while not self._ended.empty():
            key, done = self._ended.get()
            self._alive.remove(key)
            self._homes.pop(key, None)
            try:
                episode = done.result()
            except EnvironmentFailedError as error:
                raise TrainingError(f"--environment_failure fail: {error}") from error
            finished.append(FinishedRollout(key, completion_of(episode), episode.score))
        return finished


def _resolve(reply: asyncio.Future[Completion], completion: Completion) -> None:
    if not reply.done():  # the episode may be cancelled
        reply.set_result(completion)


def generated(context: Context, completion: Completion) -> Generated:
    """Return the new tokens of a completion of `context`."""
    start = len(context.tokens)
    stop = ReplyStop.LENGTH
    if completion.finished:
        stopped = any(text in completion.text for text in context.stops)
        stop = ReplyStop.STOP_STRING if stopped else ReplyStop.END
    return Generated(
        completion.tokens[start:].tolist(),
        completion.log_probs[start:].tolist(),
        completion.versions[start:].tolist(),
        stop,
    )


def completion_of(episode: Episode) -> Completion:
    """Return an episode as the trainer takes it."""
    assert episode.stop is not None
    stops = {f"stop_{reason}": float(reason is episode.stop) for reason in StopReason}
    return Completion(
        text=episode.text,
        tokens=np.array(episode.tokens, dtype=np.int32),
        action_mask=np.array(episode.action_mask, dtype=np.bool_),
        log_probs=np.array(episode.log_probs, dtype=np.float32),
        finished=episode.stop is StopReason.DONE,
        versions=np.array(episode.versions, dtype=np.int32),
        turn_rewards=dict(episode.turn_rewards),
        metrics={"turns": float(episode.turns), **stops, **episode.metrics},
        images=tuple(episode.images),
    )
