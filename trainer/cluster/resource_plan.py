"""The resources of a run, as `plan` shows them and the head checks them. Torch-free, Ray-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from contract.resources import Offer
from trainer.cluster import memory_estimate
from trainer.cluster.bin_packing import Assignment, assign
from trainer.config import layout
from trainer.config.layout import Group, Pool

if TYPE_CHECKING:
    from trainer.config.config import Config


def shortfalls(config: Config, offers: Sequence[Offer]) -> tuple[str, ...]:
    """What the nodes lack for the layout of the flags, a sentence each."""
    return assign(layout.of(config), offers).shortfalls


def smaller(config: Config, offers: Sequence[Offer]) -> dict[str, int]:
    """Flags of the largest layout with fewer nodes and engines that these nodes hold; none where
    the config's own fits, or nothing does.

    The batches stay as they are: with fewer ranks each has more of a batch's samples, and
    accumulates over more passes.
    """
    if not shortfalls(config, offers):
        return {}
    candidates = [
        (_with(config, flags), flags)
        for nodes in range(1, config.actor_num_nodes + 1)
        for engines in _engines(config, nodes)
        for flags in [_scaled(config, nodes, engines)]
    ]
    candidates.sort(
        key=lambda pair: (layout.of(pair[0]).slots, pair[0].vllm_num_engines), reverse=True
    )
    for made, flags in candidates:
        if not any(layout.faults(made)) and not shortfalls(made, offers):
            return {name: size for name, size in flags.items() if size != getattr(config, name)}
    return {}


def _with(config: Config, flags: Mapping[str, Any]) -> Config:
    return replace(config, **flags)


def _engines(config: Config, policy_nodes: int) -> Sequence[int]:
    """How many engines there may be beside a policy on so many nodes: on slots of the others as
    many for each as there were."""
    if len(layout.of(config).pool_of("engine").groups) > 1:
        return [max(1, config.vllm_num_engines * policy_nodes // config.actor_num_nodes)]
    return range(1, config.vllm_num_engines + 1)


def _scaled(config: Config, policy_nodes: int, engines: int) -> dict[str, int]:
    """The policy on so many nodes, and each other model on as large a share of its own."""
    sizes = {"vllm_num_engines": engines}
    for role, prefix in layout.PREFIXES.items():
        if role != "engine":
            name = f"{prefix}_num_nodes"
            own = getattr(config, name)
            sizes[name] = min(own, max(1, own * policy_nodes // config.actor_num_nodes))
    return sizes


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
    need = memory_estimate.of(config, found.layout, group.role)
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
        share = memory_estimate.engine_share(config, found.layout)
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
        "peak_bytes": memory_estimate.least_gpu(config, found.layout, pool),
    }
