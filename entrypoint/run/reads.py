"""Files of the run directory, read beside the control port's event loop.

Storage may answer nobody for a minute, as a hard NFS mount does whose server is away. Then a read
waits, and whoever asked for it; the loop, whose answers are the head's sign of life, does not.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

STORAGE_GRACE_SECONDS = 20.0
"""How long a network file system may hide from one node what another node has written."""
MOST_AT_ONCE = 8
PATIENCE_SECONDS = 5.0
"""Shorter than that of those who ask: a command, a scrape."""


class StorageReads:
    """Threads of its own: where journal writes wait, they fill the loop's. Daemons, since a read
    that never returns must not keep the head from its end."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MOST_AT_ONCE)

    async def ask(self, read: Callable[[], T]) -> T:
        """What `read` returns or raises; in the loop alone.

        Raises TimeoutError, an OSError, where storage does not answer in time. A read that was
        given up counts until it returns: reads that stall do not pile up.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._free.acquire()
                return await asyncio.shield(self._begin(read))
        except TimeoutError:
            sentence = f"storage has not answered for {PATIENCE_SECONDS:g} s"
            raise TimeoutError(errno.ETIMEDOUT, sentence) from None

    def _begin(self, read: Callable[[], T]) -> asyncio.Future[T]:
        done: Future[T] = Future()
        answer = asyncio.wrap_future(done)
        answer.add_done_callback(lambda _: self._free.release())
        threading.Thread(target=_run, args=(read, done), name="run-read", daemon=True).start()
        return answer


def _run(read: Callable[[], T], done: Future[T]) -> None:
    done.set_running_or_notify_cancel()
    try:
        done.set_result(read())
    except Exception as error:
        done.set_exception(error)
