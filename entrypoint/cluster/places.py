"""Pure: which workers have a place in the run, and which are spares.

A run has as many places as it expects workers. Who has no place is a spare: it joins, and does no
work. Places are given when the roll is called, and while an attempt runs they stay: only the job
knows where its work is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def filled(holders: Sequence[str], there: Sequence[str], places: int) -> tuple[str, ...]:
    """Return who has a place now: holders that are there, then others in the order of `there`.

    `holders`: who had a place before. No node has two places, and no place two nodes.
    """
    present = set(there)
    staying = dict.fromkeys([name for name in dict.fromkeys(holders) if name in present][:places])
    others = [name for name in dict.fromkeys(there) if name not in staying]
    return (*staying, *others[: places - len(staying)])


def moved(holders: Sequence[str], lost: str, to: str) -> tuple[str, ...]:
    """Return the holders after the work of `lost` has moved to the node `to`.

    If `to` has a place already, it does the work of both, and the place of `lost` is free.
    """
    if lost not in holders:
        return tuple(holders)
    return tuple(dict.fromkeys(to if name == lost else name for name in holders))


def taken(before: Iterable[str], now: Iterable[str]) -> list[tuple[str, str]]:
    """Return who took whose place, as pairs of the lost node and the node in its place."""
    before, now = dict.fromkeys(before), dict.fromkeys(now)
    lost = [name for name in before if name not in now]
    new = [name for name in now if name not in before]
    return list(zip(lost, new, strict=False))
