"""Who may write to a run: the head with the newest lease, and what that head has started.

A lease is a file in `RUN/.leases` whose name is a number, each head's greater than that of the one
before: a fencing token. Whoever writes to the run holds the path of its lease and looks, right
before each write, whether there is a greater number. Files are only ever added, each by an
exclusive create, so that no head takes another's number and none that wakes up late can put the
clock back.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from trainer import stored

NUMBER = re.compile(r"[1-9][0-9]{0,9}")
VARIABLE = "ROLLCALL_LEASE"
"""Names the lease to the driver of an attempt."""


class SupersededError(Exception):
    """A later head has the run; the sentence names both."""


def mine() -> Path | None:
    """The lease that this process works under; None where it was started by hand."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None


def environment(lease: Path | None) -> dict[str, str]:
    """What the driver of an attempt is to have."""
    return {VARIABLE: str(lease)} if lease else {}


def epoch(lease: Path | None) -> int | None:
    return int(lease.name) if lease else None


def newest(leases: Path) -> Path | None:
    """The lease with the greatest number. Raises OSError where the directory cannot be read."""
    return leases / str(max(numbers)) if (numbers := _numbers(leases)) else None


def _numbers(leases: Path) -> set[int]:
    """Read anew each time: a network file system looks again when a directory is opened."""
    try:
        return {int(one.name) for one in os.scandir(leases) if NUMBER.fullmatch(one.name)}
    except FileNotFoundError:
        return set()


def check(lease: Path | None) -> None:
    """Raises SupersededError where a later head has the run; OSError where that cannot be seen, or
    where other storage has come into the run directory's place.

    Without a lease nobody supervises the run, and there is nothing to look for.
    """
    if lease is None:
        return
    numbers = _numbers(lease.parent)
    if int(lease.name) not in numbers:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(lease))
    later = lease.with_name(str(max(numbers)))
    if later != lease:
        raise SupersededError(
            f"{lease.parent.parent} was taken over by a later head (lease {later.name}, on "
            f"{read(later).get('host', 'another machine')}): this one, of lease {lease.name}, "
            "writes nothing more and stops"
        )


def read(lease: Path) -> dict[str, object]:
    """What its holder has written into it; nothing where that is torn, or not there yet."""
    try:
        return stored.json_object(lease) or {}
    except OSError:
        return {}
