"""Items of many HTTP requests, answered together: completions to score, queries to search.

Handlers put items into one bounded queue and wait for their answers. A single task takes the items
that are there, at most `max_batch` or those of `max_wait` seconds, and answers them in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_batch: int = 64
    """Items in one call of the function that answers."""
    max_wait: float = 0.005
    """Seconds that an unfilled batch waits for company."""
    max_queue: int = 4096
    """Items that may wait; a request beyond is turned away."""


class QueueFullError(RuntimeError):
    """No room now; later there may be."""


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Item, Answer]):
    item: Item
    answer: asyncio.Future[Answer]


class Batcher(Generic[Item, Answer]):
    def __init__(self, answer: Callable[[Sequence[Item]], list[Answer]], limits: Limits) -> None:
        """`answer` returns one answer for each item, in order. It runs in a thread."""
        self._answer = answer
        self._limits = limits
        self._queue: asyncio.Queue[_Waiting[Item, Answer]] = asyncio.Queue()
        self.done = 0
        """Items answered so far."""

    @property
    def waiting(self) -> int:
        """Items in the queue."""
        return self._queue.qsize()

    async def submit(self, items: Sequence[Item]) -> list[Answer]:
        """One answer for each item, in order. Raises QueueFullError, with nothing queued."""
        if self.waiting + len(items) > self._limits.max_queue:
            raise QueueFullError(
                f"{self.waiting} are waiting already, at most {self._limits.max_queue}"
            )
        loop = asyncio.get_running_loop()
        waiting: list[_Waiting[Item, Answer]] = [
            _Waiting(item, loop.create_future()) for item in items
        ]
        for one in waiting:
            self._queue.put_nowait(one)
        return await asyncio.gather(*(one.answer for one in waiting))

    async def run(self) -> None:
        """Answer batch after batch, until cancelled. An error of a batch goes to its requests."""
        while True:
            batch = await self._collect()
            try:
                answers = await asyncio.to_thread(self._answer, [one.item for one in batch])
            except Exception as error:
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                continue
            self.done += len(batch)
            for one, answer in zip(batch, answers, strict=True):
                if not one.answer.done():  # its handler may be gone
                    one.answer.set_result(answer)

    async def _collect(self) -> list[_Waiting[Item, Answer]]:
        batch = [await self._queue.get()]
        try:
            async with asyncio.timeout(self._limits.max_wait):
                while len(batch) < self._limits.max_batch:
                    batch.append(await self._queue.get())
        except TimeoutError:
            pass
        return batch
