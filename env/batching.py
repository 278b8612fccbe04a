"""Completions of many requests, scored together.

Handlers put completions into one bounded queue and wait for their scores; a single task takes what
is there, at most `max_batch` or what came within `max_wait`, and scores it in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from env.types import RewardFunction, RewardRequest, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_batch: int = 64
    """Completions in one call of the reward function."""
    max_wait: float = 0.005
    """Seconds that an unfilled batch waits for company."""
    max_queue: int = 4096
    """Completions that may wait; a request beyond is turned away."""


class QueueFullError(RuntimeError):
    """No room now; later there may be."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: RewardRequest
    score: asyncio.Future[Score]


class Batcher:
    def __init__(self, reward: RewardFunction, limits: Limits) -> None:
        self._reward = reward
        self._limits = limits
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self.scored = 0
        """Completions scored so far."""

    @property
    def waiting(self) -> int:
        """Completions in the queue."""
        return self._queue.qsize()

    async def score(self, requests: Sequence[RewardRequest]) -> list[Score]:
        """One score for each request, in order. Raises QueueFullError, with nothing queued."""
        if self.waiting + len(requests) > self._limits.max_queue:
            raise QueueFullError(f"{self.waiting} completions are waiting already")
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(request, loop.create_future()) for request in requests]
        for item in waiting:
            self._queue.put_nowait(item)
        return await asyncio.gather(*(item.score for item in waiting))

    async def run(self) -> None:
        """Score batch after batch, until cancelled."""
        while True:
            batch = await self._collect()
            scores = await asyncio.to_thread(self._reward, [item.request for item in batch])
            self.scored += len(batch)
            for item, score in zip(batch, scores, strict=True):
                if not item.score.done():  # its handler may be gone
                    item.score.set_result(score)

    async def _collect(self) -> list[_Waiting]:
        batch = [await self._queue.get()]
        try:
            async with asyncio.timeout(self._limits.max_wait):
                while len(batch) < self._limits.max_batch:
                    batch.append(await self._queue.get())
        except TimeoutError:
            pass
        return batch
