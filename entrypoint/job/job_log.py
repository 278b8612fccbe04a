"""Copies the driver's output into the run directory while the job runs.

The driver runs on the head, where Ray writes its output to a file. The copy reads that file: Ray's
HTTP and WebSocket routes deliver the same text later, and nothing while the dashboard is busy or
gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from contract.files.log_copy import Copy, lines_of

POLL_SECONDS = 0.2
CHUNK_BYTES = 2**18
END_SECONDS = 10.0
"""How long to copy what a job has printed faster than it could be copied, once it is over."""
LAST_BYTES = 2**22
"""Of its end, that is read for evidence in any case."""
MOST_WAITING = 2**20
"""Characters of lines that wait for their reader."""


def source(ray_dir: Path, submission_id: str) -> Path | None:
    """Return Ray's file with the output of this submission; None before the driver starts."""
    found = ray_dir.glob(f"session_*/logs/job-driver-{submission_id}.log")
    return next(found, None)


def follow(
    find: Callable[[], Path | None],
    copy: Copy,
    over: threading.Event,
) -> None:
    """Copy the file that `find` names, from its start, until `over` is set and its end is read.

    What takes more than END_SECONDS from then on is left out, but for the last LAST_BYTES.
    """
    descriptor: int | None = None
    try:
        while True:
            last = over.is_set()  # first: then the read below includes all that was written
            if descriptor is None and (path := find()) is not None:
                descriptor = os.open(path, os.O_RDONLY)
            if descriptor is not None and last:
                _copy_rest(descriptor, copy)
            if last:
                break
            if descriptor is None or not _copy_some(descriptor, copy):
                over.wait(POLL_SECONDS)
    finally:
        copy.close()
        if descriptor is not None:
            os.close(descriptor)


def _copy_some(descriptor: int, copy: Copy, most: int = CHUNK_BYTES) -> int:
    data = os.read(descriptor, min(CHUNK_BYTES, most))
    copy.take(data)
    return len(data)


def _copy_rest(descriptor: int, copy: Copy) -> None:
    """Copy what the file holds now. A writer that continues cannot keep the reader busy."""
    until = time.monotonic() + END_SECONDS
    left = os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
    while left > 0 and (done := _copy_some(descriptor, copy, left)):
        left -= done
        if left > LAST_BYTES and time.monotonic() > until:
            copy.skip()
            os.lseek(descriptor, left - LAST_BYTES, os.SEEK_CUR)
            left = LAST_BYTES


class Telling:
    """Tells lines to a reader that is slower than the job, in a thread of its own.

    `put` takes them, `_tell` tells them. If the reader is far behind, it misses all but the newest
    lines.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._waiting: deque[str] = deque()
        self._size = 0
        """Characters that are waiting."""
        self._change = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="read-job-log", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        """Take the next lines, in one text."""
        with self._change:
            self._waiting.append(text)
            self._size += len(text)
            while self._size > MOST_WAITING and len(self._waiting) > 1:
                self._size -= len(self._waiting.popleft())
            self._change.notify()

    def close(self) -> None:
        """Return when all that is waiting is told."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    def _work(self) -> None:
        while (text := self._next()) is not None:
            for line in lines_of(text):
                self._tell(line)

    def _next(self) -> str | None:
        with self._change:
            while not self._waiting and not self._closed:
                self._change.wait()
            if not self._waiting:
                return None
            text = self._waiting.popleft()
            self._size -= len(text)
            return text
