"""Leases decide who may write to a run: the head with the newest lease, and its processes.

A lease is a file in `RUN/.leases`. Its name is a number, the fencing token; each head takes a
greater number than the head before. A writer knows the path and the holder of its lease. Right
before each write it checks that no lease has a greater number, and that its own lease still has the
same holder. Leases are only added, each by an exclusive create. So no two heads share a number, and
a head that was suspended cannot go back to an older one. If somebody deletes the files, the journal
still has the numbers, and a new number is greater than all of them.
"""

from __future__ import annotations

import errno
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from contract.files import epochs, stored_json
from contract.files.child_variables import LEASE, LEASE_HOLDER

NUMBER = re.compile(r"[1-9][0-9]{0,9}")
VARIABLE, HOLDER_VARIABLE = LEASE, LEASE_HOLDER
"""Variables that give the lease and its holder to the driver of an attempt."""
RESTORE_SECONDS = 5.0
"""Seconds for a live head to write its lease again after somebody deleted it."""


class SupersededError(Exception):
    """A later head owns the run; the message names both heads."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease and its holder."""

    lease: Path
    holder: str
    """The incarnation of the head, which is also in the lease."""

    @property
    def epoch(self) -> int:
        """The lease's number."""
        return int(self.lease.name)


def mine() -> Claim | None:
    """Return the claim of this process; None if a user started it by hand."""
    path = os.environ.get(VARIABLE)
    return Claim(Path(path), os.environ.get(HOLDER_VARIABLE, "")) if path else None


def environment(claim: Claim | None) -> dict[str, str]:
    """Return the environment variables of the driver of an attempt."""
    return {VARIABLE: str(claim.lease), HOLDER_VARIABLE: claim.holder} if claim else {}


def newest(leases: Path) -> Path | None:
    """Return the lease with the greatest number. Raises OSError if the directory cannot be read."""
    return leases / str(max(numbers)) if (numbers := _numbers(leases)) else None


def silence(leases: Path) -> float | None:
    """Return the seconds since the newest head's last sign of life; None if there is no lease.

    The clocks of storage and reader may differ. Raises OSError.
    """
    found = newest(leases)
    return None if found is None else time.time() - found.stat().st_mtime


def _numbers(leases: Path) -> set[int]:
    """List the directory each time: opening it makes a network file system refresh it."""
    try:
        return {int(entry.name) for entry in os.scandir(leases) if NUMBER.fullmatch(entry.name)}
    except FileNotFoundError:
        return set()


def check(claim: Claim | None) -> None:
    """Raises SupersededError if another head owns the run, OSError if that cannot be determined.

    OSError also means that other storage has replaced the run directory. If the lease was deleted
    or damaged, wait: its live holder writes it again. Without a claim nobody supervises the run,
    and nothing is checked.
    """
    if claim is None:
        return
    until = time.monotonic() + RESTORE_SECONDS
    while (fault := _fault(claim)) is not None:
        if time.monotonic() > until:
            raise fault
        time.sleep(RESTORE_SECONDS / 50)


def refuse_later(claim: Claim) -> None:
    """Raises SupersededError if a greater number exists, OSError if no lease can be listed."""
    newest = max(_numbers(claim.lease.parent), default=0)
    if epochs.is_superseded(claim.epoch, newest):
        raise _superseded(claim, claim.lease.with_name(str(newest)))


def _fault(claim: Claim) -> Exception | None:
    """Return a fault of the lease that its holder may correct. Raises as `refuse_later` does."""
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
    """Return the fields of the lease; empty if the file is damaged or absent."""
    try:
        return stored_json.json_object(lease) or {}
    except OSError:
        return {}
