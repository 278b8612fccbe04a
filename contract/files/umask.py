"""The umask that this process began with: a user's function may change it for all its threads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def current(status: Path = Path("/proc/self/status")) -> int:
    """Return the umask of this process, if possible without a moment in which it is another."""
    with suppress(OSError):
        if found := re.search(r"^Umask:\s*([0-7]+)", status.read_text(), re.MULTILINE):
            return int(found[1], 8)
    mask = os.umask(0o077)  # no other system says it: meanwhile, new files are for this user alone
    os.umask(mask)
    return mask


_AT_START = current()


def restore() -> None:
    """Have the files that are made from now on get the modes that they would have had at first."""
    os.umask(_AT_START)


@contextmanager
def kept() -> Iterator[None]:
    """Restore the umask behind the block, in which a user's function runs.

    Meanwhile other threads may write: what writes a run's files restores it before, too.
    """
    try:
        yield
    finally:
        restore()
