"""Pure: which nodes the heads before this one had, as the journal tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from contract.launch.places import MOVED
from entrypoint.cluster import places
from entrypoint.cluster.node_info import NodeInfo

CHECK_IN, ROLL, START = "check-in", "roll", "start"
KINDS = (START, CHECK_IN, ROLL, MOVED)
"""Of the events that are read here."""
Events = Iterable[Mapping[str, Any]]
"""Oldest first."""


def workers(events: Events) -> tuple[str, ...]:
    """Return who had a place last: the workers of the last roll, and spares in their places.

    Work that moved to the head holds no place: who leads next waits for no lost head.
    """
    held: tuple[str, ...] = ()
    leader = ""
    for event in events:
        about = event["details"]
        if event["kind"] == START:
            leader = event["node"]
        elif event["kind"] == ROLL:
            held = tuple(about.get("present", ()))
        elif event["kind"] == MOVED:
            moved = places.moved(held, str(about.get("lost")), str(about.get("node")))
            held = tuple(name for name in moved if name != leader)
    return held


def members(events: Events, own: str) -> list[NodeInfo]:
    """Return the last head and its workers, without the node `own`, which leads now."""
    told, heads = dict[str, Mapping[str, Any]](), list[str]()
    known = list(events)
    for event in known:
        if event["kind"] == START:
            heads.append(event["node"])
            told[event["node"]] = event["details"]
        elif event["kind"] == CHECK_IN:
            told[event["details"].get("node", "")] = event["details"]
    before = [name for name in heads if name != own][-1:]
    names = dict.fromkeys([*before, *workers(known)])
    return [_member(name, told.get(name, {})) for name in names if name != own]


def _member(name: str, told: Mapping[str, Any]) -> NodeInfo:
    address, rank = told.get("address"), told.get("rank")
    return NodeInfo(
        node=name,
        address=address if isinstance(address, str) else "",
        versions={},
        rank=rank if isinstance(rank, int) else None,
    )
