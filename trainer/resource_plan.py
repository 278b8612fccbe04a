"""The resources of a run, as `plan` shows them and the head checks them. Torch-free, Ray-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainer import layout, memory
from trainer.assignment import Assignment, Offer, assign
from trainer.layout import Group, Pool

if TYPE_CHECKING:
    from trainer.config import Config


def shortfalls(config: Config, offers: Sequence[Offer]) -> tuple[str, ...]:
    """What the nodes lack for the layout of the flags, a sentence each."""
    return assign(layout.of(config), offers).shortfalls


def row(config: Config, offers: Sequence[Offer]) -> dict[str, Any]:
    """Where every group of the run would lie on nodes like these, and the memory that it takes.

    Bytes are None where a model is not on this disk.
    """
    found = assign(layout.of(config), offers)
    unit = "GPU" if found.on_gpus else "CPU"
    return {
        "slot": "1 GPU" if found.on_gpus else f"{found.cpus:g} CPU",
        "slots": found.layout.slots,
        "groups": [
            _group(config, found, pool, group)
            for pool in found.layout.pools
            for group in pool.groups
        ],
        "memory": [_memory(config, found, pool, unit) for pool in found.layout.pools],
        "shortfalls": list(found.shortfalls),
        "note": found.note,
    }


def _group(config: Config, found: Assignment, pool: Pool, group: Group) -> dict[str, Any]:
    need = memory.of(config, found.layout, group.role)
    engine = group.role == "engine"
    known = {
        "role": group.role,
        "nodes": group.nodes,
        "per_node": group.per_node,
        "processes": len(pool.seats(group.role)),
        "on": _nodes(found, pool, group),
        "shares_with": [one.role for one in pool.groups if one is not group],
        "fraction": round(1 / pool.tenants, 4),
        "resources": dict(pool.resources),
    }
    if engine:
        weights = need and need.weights
        share = memory.engine_share(config, found.layout)
        return known | {"bytes": {"weights": weights}, "memory_share": share}
    return known | {
        "bytes": need
        and {
            "weights": need.weights,
            "gradients": need.gradients,
            "optimiser": need.optimiser,
            "activations": max(need.update, need.forward),
            "host": need.host,
            "peak": need.peak,
        }
    }


def _nodes(found: Assignment, pool: Pool, group: Group) -> list[str]:
    """The node of each engine; of other groups each node once. Empty without a place."""
    if pool.name not in found.nodes:
        return []
    if group.role != "engine":
        return list(found.nodes[pool.name][: group.nodes])
    return [found.node_of(pool, slots[0]) for slots in pool.seats("engine")]


def _memory(config: Config, found: Assignment, pool: Pool, unit: str) -> dict[str, Any]:
    return {
        "roles": [group.role for group in pool.groups],
        "each": unit,
        "peak_bytes": memory.least_gpu(config, found.layout, pool),
    }
