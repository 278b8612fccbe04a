"""Pure: lease numbers, the epochs of a run: which writer is superseded, which event counts."""

from __future__ import annotations


def next_number(newest_lease: int, newest_written: int) -> int:
    """Return the number of a new lease: above all leases, and above all events of the journal."""
    return max(newest_lease, newest_written) + 1


def is_superseded(own: int, newest_lease: int) -> bool:
    """Return whether the holder of lease `own` may write no more. Ask right before each write."""
    return newest_lease > own


def is_in_force(epoch: int | None, newest: int) -> bool:
    """Return whether an event counts that follows events of lease `newest` in the journal.

    An older head may have checked its lease in time and have written too late. `epoch`: None or 0
    if nobody supervised the writer.
    """
    return (epoch or newest) >= newest
