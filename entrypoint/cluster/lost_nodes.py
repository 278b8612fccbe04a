"""Pure: which nodes were in the cluster and are gone for good, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contract.durations import duration
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.roll import RegisteredNode


@dataclass(frozen=True, slots=True)
class LostNode:
    """A worker or a spare that was there, or the head before this one, and is gone."""

    name: str
    address: str
    rank: int | None
    """The number that the platform gives the node; None if it gives none."""
    reason: str


@dataclass(frozen=True, slots=True)
class Attendance:
    heard: frozenset[str]
    """Members that are there, or start again."""
    lost: tuple[LostNode, ...] = ()
    away: frozenset[str] = frozenset()
    """Nodes that were there, and may be back at any moment."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """A node that was put off the roll by the head."""

    why: str
    life: str
    """`examined` of its process then, which it has again until its checks have passed anew."""
    until: float = 0.0
    """When it may be back at the earliest; seconds of the head's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the registry knows of the nodes, by their names."""

    joined: Mapping[str, NodeInfo]
    """What each node said last of those that have ever joined, and the members of the head before
    this one."""
    entries: Mapping[str, RegisteredNode]
    refused: Mapping[str, str]
    """Nodes that came back, and were not taken → why."""
    forgotten: Mapping[str, float]
    """Those that left or are to join again → since when."""
    evicted: Mapping[tuple[str, str], Evicted]
    """(Name, address) → why the node was evicted, and more."""
    unwanted: Mapping[str, str]
    """Nodes in whose place others are to come before they leave → why."""


def attendance(known: Known, now: float, patience: float) -> Attendance:
    """Return who is there and who is gone.

    `patience`: seconds of silence after which a node counts as gone. One that was evicted is gone
    at once, and one that is unwanted counts as gone.
    """
    present = {name for name, entry in known.entries.items() if entry.present(now)}
    heard = frozenset(present & set(known.joined)) - set(known.unwanted)
    lost, away = [], set()
    for name, info in known.joined.items():
        if name in heard:
            continue
        if why := _why_gone(known, info, now, patience):
            lost.append(LostNode(name, info.address, info.rank, why))
        else:
            away.add(name)
    return Attendance(heard, tuple(lost), frozenset(away))


def _why_gone(known: Known, info: NodeInfo, now: float, patience: float) -> str:
    """Return why a node is gone for good; "" if it may be back."""
    name = info.node
    if why := known.unwanted.get(name):
        return why
    if evicted := known.evicted.get((name, info.address)):
        return evicted.why
    if why := known.refused.get(name):
        return f"it came back, and was refused: {why}"
    entry, since = known.entries.get(name), known.forgotten.get(name)
    if entry is not None and now - entry.seen_at > patience:
        return f"it has been silent for {duration(now - entry.seen_at)}"
    if since is not None and now - since > patience:
        return f"it has not come back for {duration(now - since)}"
    return ""
