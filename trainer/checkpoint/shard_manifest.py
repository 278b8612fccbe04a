"""What a snapshot in memory consists of, and when it is whole. Pure, and torch-free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainer.cluster.shared_memory import Entry

Key = tuple[str, int, str, int]
"""Attempt, step, role, rank: no two shares have the same."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies in a segment: a few kilobytes that make a training state of its bytes."""

    entries: tuple[Entry, ...]
    """Named KIND/KEY/NAME: model//NAME, average//NAME, adam/KEY/NAME."""
    scheduler: dict[str, Any]
    bytes: int
    """Of the segment's beginning that are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One rank's share of a snapshot, and how it is known to be whole: a manifest in memory."""

    attempt: str
    """Who made it: shares of two attempts never make a snapshot together."""
    step: int
    role: str
    rank: int
    ranks: dict[str, int]
    """Role → its ranks: all shares of the snapshot."""
    run_state: str
    """As RunState.parse reads it."""
    in_flight: bytes | None
    """Rollouts under way, in the first rank's sheet."""
    contents: Contents
    digests: tuple[str, ...]
    """XXH3 of each piece of its bytes, in order."""

    @property
    def key(self) -> Key:
        return self.attempt, self.step, self.role, self.rank

    @property
    def name(self) -> str:
        """The key as the name of a file."""
        return "-".join(map(str, self.key))


def newest_whole(found: Iterable[Sheet], at_most: int | None = None) -> list[Sheet]:
    """The shares of the newest step, `at_most` that one, of which there are all; none where there
    is no such step."""
    snapshots: dict[tuple[int, str], dict[tuple[str, int], Sheet]] = defaultdict(dict)
    for sheet in found:
        if at_most is not None and sheet.step > at_most:
            continue
        snapshots[sheet.step, sheet.attempt][sheet.role, sheet.rank] = sheet
    for _, shares in sorted(snapshots.items(), reverse=True):
        ranks = next(iter(shares.values())).ranks
        wanted = {(role, rank) for role, count in ranks.items() for rank in range(count)}
        if shares.keys() == wanted:
            return list(shares.values())
    return []
