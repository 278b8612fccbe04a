"""A trainer that no head has started: its signs of life, and what it says of its run's end."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from contract.files import umask
from contract.run_dir import RunFiles

BY, TRAINER = "by", "trainer"
"""Detail of the events `start` and `attempt` that a trainer without a head has written."""
HEARTBEAT_SECONDS = 2.0
SILENCE_SECONDS = 10.0
"""A trainer that has told nothing for so long, and holds no lock, has ended."""


def is_by_trainer(event: Mapping[str, Any] | None) -> bool:
    """Pure: whether a trainer without a head has written this start."""
    return event is not None and event["details"].get(BY) == TRAINER


@contextmanager
def alive(files: RunFiles) -> Iterator[None]:
    """Show that this process trains, until the block ends: by a lock, and by a heartbeat.

    The kernel frees the lock when the process dies. The heartbeat is for file systems that have no
    locks, or none that other machines see. Raises OSError.
    """
    umask.restore()
    descriptor = os.open(files.heartbeat, os.O_WRONLY | os.O_CREAT, 0o644)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(descriptor)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(descriptor)
        thread.start()
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()
        os.close(descriptor)


def silence(files: RunFiles) -> float | None:
    """Return the seconds since the trainer's last sign of life: 0 if it holds its lock.

    None: no trainer without a head has written here. Raises OSError.
    """
    try:
        descriptor = os.open(files.heartbeat, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0.0
        except OSError:
            pass  # this file system has no locks
        return max(0.0, time.time() - os.fstat(descriptor).st_mtime)
    finally:
        os.close(descriptor)
