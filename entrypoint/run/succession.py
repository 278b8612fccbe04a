"""Pure: who may lead a run, as far as a node can conclude it from the leases that it sees.

Time is each node's own monotonic clock, in seconds; no clock is compared with another. These
answers may be late or wrong about a holder that lives. Safety does not depend on them: a number is
given once, and a holder asks before each write whether there is a greater one
(`contract.files.epochs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

PAUSE_SECONDS = 4.0
"""Between two looks of one watch. What has stopped this node's looks for longer, such as its
storage, may have stopped the holder's heartbeat, too."""
Row = Mapping[str, object]
"""The fields of a lease; empty if the file is damaged, or new."""


@dataclass(frozen=True, slots=True)
class Vigil:
    """What a node knows of the newest lease, from its looks at it so far."""

    number: int
    """0: there is no lease."""
    row: Row
    since: float
    """When the node first saw this row, or last heard its holder."""
    looked: float
    """The last look."""


class Holder(Enum):
    """What a vigil says of the newest lease's holder."""

    UNKNOWN = auto()
    """There is no lease, or it was not watched for long enough."""
    OVER = auto()
    """It has ended in order: it has told its workers the outcome, or will be started again."""
    SILENT = auto()


def watched(before: Vigil | None, number: int, row: Row, now: float) -> Vigil:
    """Return the vigil after a look at the newest lease, which the node has read as `row`.

    The watch begins anew if the lease has changed, or after a pause.
    """
    if before is None or (before.number, before.row) != (number, row):
        return Vigil(number, row, now, now)
    since = before.since if now - before.looked <= PAUSE_SECONDS else now
    return replace(before, since=since, looked=now)


def heard(vigil: Vigil, now: float) -> Vigil:
    """Return the vigil after an answer of the head itself: a holder that answers is not silent."""
    return replace(vigil, since=now)


def holder(vigil: Vigil, now: float, patience: float) -> Holder:
    """Return what the vigil says. `patience`: seconds for which a holder that lives may be silent.

    Without any lease the answer is UNKNOWN: a mount that is away shows an empty directory.
    """
    if vigil.number == 0:
        return Holder.UNKNOWN
    if vigil.row.get("over"):
        return Holder.OVER
    return Holder.SILENT if now - vigil.since > patience else Holder.UNKNOWN


def may_succeed(vigil: Vigil, number: int, row: Row, now: float, patience: float) -> bool:
    """Return whether a waiting worker may take the next number.

    `number`, `row`: the newest lease at this moment, which must still be the one that was watched.
    """
    unchanged = (vigil.number, vigil.row) == (number, row)
    return unchanged and holder(vigil, now, patience) is Holder.SILENT


def leader_after_failover(row: Row) -> str:
    """Return the address of a head that was a worker; "" if the lease is not of such a head.

    Then the head is at no address that the nodes' settings know.
    """
    return str(row.get("address", "")) if row.get("was_worker") and not row.get("over") else ""


def fewest_workers(expected: int, given: int | None, takeovers: int) -> int:
    """Return with how many workers a run may go on after so many heads were lost for ever.

    Each new head was a worker. `given`: ROLLCALL_MIN_WORKERS, which counts if it is set.
    """
    return min(given, expected) if given is not None else max(0, expected - takeovers)
