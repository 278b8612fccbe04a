"""The resources that a run needs, for `rollcall plan` and for the head. Torch-free, Ray-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from contract.resources import NodeResources
from trainer.cluster import host_memory, memory_estimate
from trainer.cluster.auto_layout import cost, kernels
from trainer.cluster.bin_packing import Assignment, pack
from trainer.cluster.model_size import known_size
from trainer.config import layout
from trainer.config.layout import ResourcePool, Role, RoleProcesses

if TYPE_CHECKING:
    from trainer.cluster.memory_estimate import PoolMemory
    from trainer.config.config import Config

SAVINGS: Mapping[str, Any] = {
    **{"micro_train_batch_size": 1, "micro_rollout_batch_size": 1},
    **{"gradient_checkpointing": True, "lora_rank": 8},
}
"""Flags that take less memory on CPUs, each added to those before it."""


def shortfalls(config: Config, offers: Sequence[NodeResources]) -> tuple[str, ...]:
    """Return what the nodes lack for the layout of the flags, one sentence for each shortfall."""
    return pack(layout.of(config), offers).shortfalls


def smaller(config: Config, offers: Sequence[NodeResources]) -> dict[str, int]:
    """Return the flags of the largest smaller layout that these nodes can hold.

    Empty if the layout of `config` fits, or if no layout does. Batch sizes stay the same: each of
    fewer ranks gets more samples, and accumulates gradients over more passes.
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
    """Return the possible numbers of engines for a policy on `policy_nodes` nodes.

    Engines that share the slots of other roles keep their number per policy node."""
    if len(layout.of(config).pool_of(Role.ENGINE).groups) > 1:
        return [max(1, config.vllm_num_engines * policy_nodes // config.actor_num_nodes)]
    return range(1, config.vllm_num_engines + 1)


def _scaled(config: Config, policy_nodes: int, engines: int) -> dict[str, int]:
    """Return the sizes with the policy on `policy_nodes`, and each model reduced by that ratio."""
    sizes = {"vllm_num_engines": engines}
    for role, prefix in layout.PREFIXES.items():
        if role != Role.ENGINE:
            name = f"{prefix}_num_nodes"
            own = getattr(config, name)
            sizes[name] = min(own, max(1, own * policy_nodes // config.actor_num_nodes))
    return sizes


def row(config: Config, offers: Sequence[NodeResources]) -> dict[str, Any]:
    """Return the nodes and the memory of every role on nodes like these, as JSON.

    Bytes are None if a model is not on this disk.
    """
    found = pack(layout.of(config), offers)
    unit = "GPU" if found.on_gpus else "CPU"
    return {
        "slot": "1 GPU" if found.on_gpus else f"{found.cpus:g} CPU",
        "slots": found.layout.slots,
        "groups": [
            _group(config, found, pool, group)
            for pool in found.layout.pools
            for group in pool.groups
        ],
        "memory": [
            _memory(config, found, pool, unit) | {"memory_bytes": _of_gpus(found, pool, offers)}
            for pool in found.layout.pools
        ],
        "host": host_memory.row(config, found, offers),
        "on_cpus": _on_cpus(config, found, offers),
        "cost": _cost(config, found, offers),
        "kernels": kernels.sentence(config) if found.on_gpus else None,
        "shortfalls": list(found.shortfalls),
        "note": found.note,
        "idle": idle(found, offers),
    }


def _cost(
    config: Config, found: Assignment, offers: Sequence[NodeResources]
) -> dict[str, Any] | None:
    """Return the estimated seconds of a step; None on CPUs, or if a model's size is unknown."""
    rates = cost.rates_of(offers)
    step = cost.of_step(config, found.layout, known_size, rates) if found.on_gpus else None
    if step is None:
        return None
    return {
        "seconds": step.seconds,
        "terms": asdict(step),
        "passes": cost.passes_an_update(config),
        "tokens_a_pass": cost.tokens_a_pass(config),
        "rates_of": rates.gpu,
        "unknown_gpu": rates.assumed or None,
    }


def idle(found: Assignment, offers: Sequence[NodeResources]) -> str | None:
    """Return a sentence on the GPUs without work, and the nodes; None if every GPU has work."""
    total = sum(offer.gpus for offer in offers)
    if not found.on_gpus or found.shortfalls or found.layout.slots >= total:
        return None
    busy = {node for nodes in found.nodes.values() for node in nodes}
    unused = [offer.name for offer in offers if offer.gpus and offer.name not in busy]
    *most, last = unused or [""]
    named = f", all of {', '.join(most)}{' and ' if most else ''}{last}," if unused else ""
    return f"{total - found.layout.slots} of {total} GPUs{named} have no work"


def _group(
    config: Config, found: Assignment, pool: ResourcePool, group: RoleProcesses
) -> dict[str, Any]:
    need = memory_estimate.of(config, found.layout, group.role)
    engine = group.role == Role.ENGINE
    known = {
        "role": group.role,
        "nodes": group.nodes,
        "per_node": group.per_node,
        "processes": len(pool.slots_of(group.role)),
        "on": _nodes(found, pool, group),
        "shares_with": [other.role for other in pool.groups if other is not group],
        "fraction": round(1 / pool.procs_per_slot, 4),
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
            "optimiser": need.optimizer,
            "activations": max(need.update, need.forward),
            "host": need.host + need.copy,
            "peak": need.peak,
        }
    }


def _nodes(found: Assignment, pool: ResourcePool, group: RoleProcesses) -> list[str]:
    """Return the node of each engine; each node of another role once. Empty if it does not fit."""
    if pool.name not in found.nodes:
        return []
    if group.role != Role.ENGINE:
        return list(found.nodes[pool.name][: group.nodes])
    return [found.node_of(pool, slots[0]) for slots in pool.slots_of(Role.ENGINE)]


def _memory(config: Config, found: Assignment, pool: ResourcePool, unit: str) -> dict[str, Any]:
    memory = memory_estimate.of_pool(config, found.layout, pool)
    phase, parts = ("", {}) if memory is None else _fullest(memory)
    return {
        "roles": [group.role for group in pool.groups],
        "each": unit,
        "peak_bytes": memory and memory.least,
        "phase": phase or None,
        "parts": parts or None,
    }


def _of_gpus(found: Assignment, pool: ResourcePool, offers: Sequence[NodeResources]) -> int | None:
    """Return the memory of the smallest GPU on which the pool lies; None if unknown."""
    on = set(found.nodes.get(pool.name, ())) if found.on_gpus else set()
    sizes = [offer.gpu_memory for offer in offers if offer.name in on]
    return min(sizes) if sizes and all(sizes) else None


def _on_cpus(
    config: Config, found: Assignment, offers: Sequence[NodeResources]
) -> dict[str, Any] | None:
    """Return what all processes of the fullest node need; None on GPUs, or if unknown.

    The states alone are needed whatever the length of the samples is.
    """
    if found.on_gpus or found.shortfalls:
        return None
    needs = _needs_on_cpus(config, found, offers)
    if needs is None:
        return None
    node = max(offers, key=lambda offer: needs[offer.name] / (offer.memory or 1))
    need = needs[node.name]
    known = {"node": node.name, "need_bytes": need, "memory_bytes": node.memory or None}
    fits = _saving(config, offers) if node.memory and need > node.memory else None
    return known | {"states_bytes": _states_on(node.name, config, found), "fits_with": fits}


def _needs_on_cpus(
    config: Config, found: Assignment, offers: Sequence[NodeResources]
) -> dict[str, int] | None:
    """Return the bytes of each node; None if a model's size is unknown."""
    needs = dict.fromkeys((offer.name for offer in offers), 0)
    for pool in found.layout.pools:
        memory = memory_estimate.of_pool(config, found.layout, pool)
        if memory is None:
            return None
        for name in found.nodes[pool.name]:
            needs[name] += pool.per_node * memory.least
    return needs


def _states_on(node: str, config: Config, found: Assignment) -> int:
    """Return the bytes of weights, gradients and optimizers on the node."""
    total = 0
    for pool in found.layout.pools:
        processes = pool.per_node * found.nodes[pool.name].count(node)
        for group in pool.groups:
            need = memory_estimate.of(config, found.layout, group.role)
            total += processes * (need.weights + need.gradients + need.optimizer if need else 0)
    return total


def _saving(config: Config, offers: Sequence[NodeResources]) -> dict[str, Any] | None:
    """Return the first flags of `SAVINGS` with which all nodes suffice; None if none do."""
    flags: dict[str, Any] = {}
    for name, value in SAVINGS.items():
        flags[name] = value
        less = config.with_flags(flags)
        needs = _needs_on_cpus(less, pack(layout.of(less), offers), offers)
        if needs and all(needs[one.name] <= (one.memory or needs[one.name]) for one in offers):
            words = [word for of, to in flags.items() for word in (f"--{of}", str(to).lower())]
            return {"flags": words, "need_bytes": max(needs.values())}
    return None


def _fullest(memory: PoolMemory) -> tuple[str, Mapping[str, int]]:
    """Return the phase that needs the least GPU, and what each role holds of it then.

    Engines have their share, of which they use what the weights leave for the cache.
    """
    phase = max(
        memory.phases,
        key=lambda name: sum(memory.phases[name].values()) / (1 - memory.share(name)),
    )
    held = {role: size for role, size in memory.phases[phase].items() if size}
    if sum(held.values()) / (1 - memory.share(phase)) < memory.least - 1:
        phase, held = "rollout", dict(memory.phases["rollout"])  # the engine's weights decide
    rest = memory.least - sum(held.values())
    if rest > 0:
        held[Role.ENGINE] = held.get(Role.ENGINE, 0) + rest
    return phase, {role: size for role, size in held.items() if size}
