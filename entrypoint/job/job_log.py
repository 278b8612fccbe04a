"""Copies the driver's output into the run directory while the job runs.

The driver runs on the head, where Ray writes its output to a file. The copy reads that file: Ray's
HTTP and WebSocket routes deliver the same text later, and nothing while the dashboard is busy or
gone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from contract.log_copy import Copy

POLL_SECONDS = 0.2
CHUNK_BYTES = 2**20


def source(ray_dir: Path, submission_id: str) -> Path | None:
    """Return Ray's file with the output of this submission; None before the driver starts."""
    found = ray_dir.glob(f"session_*/logs/job-driver-{submission_id}.log")
    return next(found, None)


def follow(
    find: Callable[[], Path | None],
    copy: Copy,
    over: threading.Event,
) -> None:
    """Copy the file that `find` names, from its start, until `over` is set and its end is read."""
    descriptor: int | None = None
    try:
        while True:
            last = over.is_set()  # first: then the read below includes all that was written
            if descriptor is None and (path := find()) is not None:
                descriptor = os.open(path, os.O_RDONLY)
            for data in _rest(descriptor) if descriptor is not None else ():
                copy.take(data)
            if last:
                break
            over.wait(POLL_SECONDS)
    finally:
        copy.close()
        if descriptor is not None:
            os.close(descriptor)


def _rest(descriptor: int) -> Iterator[bytes]:
    """Yield what the file holds now. A writer that continues cannot keep the reader busy."""
    left = os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
    while left > 0 and (data := os.read(descriptor, min(left, CHUNK_BYTES))):
        left -= len(data)
        yield data
