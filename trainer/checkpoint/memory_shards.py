"""What each shard of a snapshot in memory holds; when a snapshot is complete. Torch-free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trainer.cluster.shared_memory import Entry

Key = tuple[str, int, str, int]
"""Attempt, step, role, rank: unique to a shard."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Which tensors lie where in a segment: a few kilobytes."""

    entries: tuple[Entry, ...]
    """Named KIND/KEY/NAME: model//NAME, average//NAME, adam/KEY/NAME."""
    scheduler: dict[str, Any]
    bytes: int
    """Bytes at the beginning of the segment that are used."""
    pieces: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """As in a State: NAME → where the entry begins in the flat tensor, and the tensor's shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardManifest:
    """One rank's shard of a snapshot, with the checksums of its bytes."""

    attempt: str
    """Which attempt made it: shards of two attempts never make a snapshot together."""
    step: int
    role: str
    rank: int
    ranks: dict[str, int]
    """Role → number of its ranks: all shards of the snapshot."""
    run_state: str
    """As RunState.parse reads it."""
    in_flight: bytes | None
    """Pending rollouts, in the first rank's manifest."""
    contents: Contents
    digests: tuple[str, ...]
    """XXH3 of each piece of the bytes, in order."""

    @property
    def key(self) -> Key:
        return self.attempt, self.step, self.role, self.rank

    @property
    def name(self) -> str:
        """The key as a file name."""
        return "-".join(map(str, self.key))


def newest_complete(
    found: Iterable[ShardManifest], at_most: int | None = None
) -> list[ShardManifest]:
    """Return the shards of the newest complete snapshot, at most of step `at_most`; else none."""
    snapshots: dict[tuple[int, str], dict[tuple[str, int], ShardManifest]] = defaultdict(dict)
    for manifest in found:
        if at_most is not None and manifest.step > at_most:
            continue
        snapshots[manifest.step, manifest.attempt][manifest.role, manifest.rank] = manifest
    for _, shards in sorted(snapshots.items(), reverse=True):
        ranks = next(iter(shards.values())).ranks
        wanted = {(role, rank) for role, count in ranks.items() for rank in range(count)}
        if shards.keys() == wanted:
            return list(shards.values())
    return []
