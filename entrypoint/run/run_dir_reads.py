"""Reads files of the run directory without blocking the control port's event loop.

Storage may stall for a minute, as a hard NFS mount does while its server is away. Then the read
and its caller wait. The loop does not: its answers are the head's sign of life.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TypeVar

from contract.background import in_background

T = TypeVar("T")

STORAGE_GRACE_SECONDS = 20.0
"""How long a network file system may hide from one node what another node has written."""
MOST_AT_ONCE = 8
PATIENCE_SECONDS = 5.0
"""Seconds; shorter than the timeout of a command or a scrape."""


class RunDirReads:
    """Reads in threads of their own, since waiting journal writes fill the loop's threads."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MOST_AT_ONCE)

    async def ask(self, read: Callable[[], T]) -> T:
        """What `read` returns or raises. Call it in the loop only.

        Raises TimeoutError, an OSError, if storage does not answer within PATIENCE_SECONDS. A read
        that was given up counts until it returns, so that stalled reads do not pile up.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._free.acquire()
                return await asyncio.shield(self._begin(read))
        except TimeoutError:
            sentence = f"storage has not answered for {PATIENCE_SECONDS:g} s"
            raise TimeoutError(errno.ETIMEDOUT, sentence) from None

    def _begin(self, read: Callable[[], T]) -> asyncio.Future[T]:
        answer = asyncio.wrap_future(in_background("run-read", read))
        answer.add_done_callback(lambda _: self._free.release())
        return answer
