"""Who may write to a run: the head with the newest lease, and what that head has started.

A lease is a file in `RUN/.leases` whose name is a number, each head's greater than that of the one
before: a fencing token. Whoever writes to the run knows the path and the holder of its lease and
looks, right before each write, whether there is a greater number, or another holder of its own
number. Files are only ever added, each by an exclusive create, so that no head takes another's
number and none that wakes up late can put the clock back. Where somebody deletes them, the journal
still has the numbers: a new one is above all of them.
"""

from __future__ import annotations

import errno
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from contract import stored_json

NUMBER = re.compile(r"[1-9][0-9]{0,9}")
VARIABLE, HOLDER_VARIABLE = "ROLLCALL_LEASE", "ROLLCALL_LEASE_HOLDER"
"""Name the lease and its holder to the driver of an attempt."""
RESTORE_SECONDS = 5.0
"""For a living head to write its lease again where somebody has deleted it."""


class SupersededError(Exception):
    """A later head has the run; the sentence names both."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease, and who holds it."""

    lease: Path
    holder: str
    """The head's incarnation, which the lease names."""

    @property
    def epoch(self) -> int:
        """The lease's number."""
        return int(self.lease.name)


def mine() -> Claim | None:
    """What this process works under; None where it was started by hand."""
    path = os.environ.get(VARIABLE)
    return Claim(Path(path), os.environ.get(HOLDER_VARIABLE, "")) if path else None


def environment(claim: Claim | None) -> dict[str, str]:
    """What the driver of an attempt is to have."""
    return {VARIABLE: str(claim.lease), HOLDER_VARIABLE: claim.holder} if claim else {}


def newest(leases: Path) -> Path | None:
    """The lease with the greatest number. Raises OSError where the directory cannot be read."""
    return leases / str(max(numbers)) if (numbers := _numbers(leases)) else None


def _numbers(leases: Path) -> set[int]:
    """Read anew each time: a network file system looks again when a directory is opened."""
    try:
        return {int(one.name) for one in os.scandir(leases) if NUMBER.fullmatch(one.name)}
    except FileNotFoundError:
        return set()


def check(claim: Claim | None) -> None:
    """Raises SupersededError where another head has the run; OSError where that cannot be seen, or
    where other storage has come into the run directory's place.

    A lease that was deleted or damaged is waited for: its living holder writes it again. Without a
    claim nobody supervises the run, and there is nothing to look for.
    """
    if claim is None:
        return
    until = time.monotonic() + RESTORE_SECONDS
    while (fault := _fault(claim)) is not None:
        if time.monotonic() > until:
            raise fault
        time.sleep(RESTORE_SECONDS / 50)


def refuse_later(claim: Claim) -> None:
    """Raises SupersededError where there is a greater number, OSError where none can be seen."""
    newest = max(_numbers(claim.lease.parent), default=0)
    if newest > claim.epoch:
        raise _superseded(claim, claim.lease.with_name(str(newest)))


def _fault(claim: Claim) -> Exception | None:
    """What is wrong with the lease, and may be mended. Raises as `refuse_later` does."""
    refuse_later(claim)
    if not claim.lease.exists():
        return OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(claim.lease))
    if read(claim.lease).get("incarnation", claim.holder) != claim.holder:
        return _superseded(claim, claim.lease)
    return None


def _superseded(claim: Claim, by: Path) -> SupersededError:
    return SupersededError(
        f"{by.parent.parent} was taken over by a later head (lease {by.name}, on "
        f"{read(by).get('host', 'another machine')}): this one, of lease {claim.lease.name}, "
        "writes nothing more and stops"
    )


def read(lease: Path) -> dict[str, object]:
    """What its holder has written into it; nothing where that is torn, or not there yet."""
    try:
        return stored_json.json_object(lease) or {}
    except OSError:
        return {}
