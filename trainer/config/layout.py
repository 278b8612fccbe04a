"""Pure: flags → the groups of a run: how many GPUs each role has, on how many nodes, beside whom.

A slot is a GPU, or a share of a CPU on machines without GPUs: which of the two, and on which node,
is for `trainer.cluster.bin_packing` to say. Torch-free and Ray-free: the head checks its roll with
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from trainer.config.config import Config
from trainer.config.schema import Fault

PREFIXES = {
    "reference": "ref",
    "reward": "reward",
    "critic": "critic",
    "policy": "actor",
    "engine": "vllm",
}
"""Role → how its flags begin, in the order in which nodes are given out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The processes of one role."""

    role: str
    nodes: int
    """Nodes, each with as many of its ranks; of engines, how many there are."""
    per_node: int
    """Slots on each; of engines, those of one."""

    @property
    def slots(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Slots that one group has to itself, or that several share."""

    groups: tuple[Group, ...]
    """The first one's size is the pool's."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom Ray resources of each slot."""

    @property
    def name(self) -> str:
        return "+".join(group.role for group in self.groups)

    @property
    def nodes(self) -> int:
        return self.groups[0].nodes

    @property
    def per_node(self) -> int:
        return self.groups[0].per_node

    @property
    def slots(self) -> int:
        return self.groups[0].slots

    @property
    def apart(self) -> bool:
        """Whether its nodes are different ones; engines may lie on one."""
        return self.groups[0].role != "engine"

    @property
    def tenants(self) -> int:
        """Processes of one slot at most; each has an equal fraction of it."""
        return sum(-(-group.slots // self.slots) for group in self.groups)

    def seats(self, role: str) -> list[tuple[int, ...]]:
        """The slots of each process of a role: one, or those of an engine's tensor parallelism.

        The pool's slots are numbered node by node; a smaller group has the first on each node.
        """
        (group,) = (group for group in self.groups if group.role == role)
        if role == "engine":
            size = group.per_node
            starts = (engine * size % self.slots for engine in range(group.nodes))
            return [tuple(range(start, start + size)) for start in starts]
        return [
            (node * self.per_node + place,)
            for node in range(group.nodes)
            for place in range(group.per_node)
        ]


@dataclass(frozen=True, slots=True)
class Layout:
    """All slots of a run, in the order in which nodes are given out."""

    pools: tuple[Pool, ...]

    @property
    def slots(self) -> int:
        return sum(pool.slots for pool in self.pools)

    def pool_of(self, role: str) -> Pool:
        return next(p for p in self.pools if role in (group.role for group in p.groups))

    def with_engines_in(self, host: Pool) -> Layout:
        """The same with the engines on `host`'s slots instead of slots of their own."""
        engines = self.pool_of("engine")
        shared = replace(host, groups=host.groups + engines.groups)
        rest = (pool for pool in self.pools if pool is not engines)
        return Layout(tuple(shared if pool is host else pool for pool in rest))


def of(config: Config) -> Layout:
    """The layout of a run whose flags have no `faults`."""
    groups = {role: _group(config, role) for role in PREFIXES if _exists(config, role)}
    pools = []
    for role, group in groups.items():
        if _host(config, role) in groups:
            continue
        guests = [g for guest, g in groups.items() if _host(config, guest) == role]
        tenants = (group, *guests)
        pools.append(Pool(groups=tenants, resources=_resources(config, tenants)))
    return Layout(tuple(pools))


def settled(config: Config, given: Set[str]) -> Config:
    """With every guest's size said: its host's, where it was given as zero or not at all."""
    found: dict[str, Any] = {}
    for role, prefix in PREFIXES.items():
        host = _host(config, role)
        if role == "engine" or host is None:
            continue
        flags = (f"{prefix}_num_nodes", f"{prefix}_num_gpus_per_node")
        if not _size(config, role) or not given & set(flags):
            size = _group(config, host)
            found |= zip(flags, (size.nodes, size.per_node), strict=True)
    return replace(config, **found)


def faults(config: Config) -> Iterator[Fault]:
    """What no cluster could place, whatever its nodes."""
    for role, prefix in PREFIXES.items():
        if role == "engine" or not _exists(config, role):
            continue
        host, size = _host(config, role), _size(config, role)
        if not size:
            remedy = f"Give at least 1 node and 1 GPU of it{SHARING.get(role, '')}"
            yield Fault(f"--{prefix}_num_nodes", "0", f"leaves the {role} no GPU", remedy)
        elif host and _exists(config, host):
            yield from _guest_faults(_group(config, role), _group(config, host))
    yield from _engine_faults(config)


SHARING = {
    "reference": ", or --colocate_actor_ref, or --colocate_all_models",
    "reward": ", or --colocate_critic_reward, or --colocate_all_models",
    "critic": ", or --colocate_all_models",
}
"""Role → how else it comes to GPUs."""


def _guest_faults(guest: Group, host: Group) -> Iterator[Fault]:
    if guest.nodes > host.nodes or guest.per_node > host.per_node:
        yield Fault(
            f"--{PREFIXES[guest.role]}_num_nodes",
            f"{guest.nodes} x {guest.per_node} GPUs",
            f"is more than the {host.nodes} x {host.per_node} of the {host.role}, which it shares",
            "Give 0 for all of them, or at most as many",
        )


def _engine_faults(config: Config) -> Iterator[Fault]:
    """Engines that share the policy's GPUs must fit on them."""
    if _host(config, "engine") is None or not _size(config, "policy"):
        return
    host, engines = _group(config, "policy"), _group(config, "engine")
    if host.per_node % engines.per_node:
        divisors = [str(n) for n in range(1, host.per_node + 1) if host.per_node % n == 0]
        yield Fault(
            "--vllm_tensor_parallel_size",
            str(engines.per_node),
            f"does not divide the {host.per_node} GPUs of a node, which the engines share",
            f"Give one of {', '.join(divisors)}",
        )
    share, beside = config.vllm.gpu_memory_utilization, -(-engines.slots // host.slots)
    if share is not None and share * beside > 1:
        yield Fault(
            "--vllm_gpu_memory_utilization",
            f"{share:g}",
            f"adds up to {share * beside:g} of a GPU: {engines.nodes} engines of {engines.per_node}"
            f" GPUs share {host.slots}",
            f"Give less than {1 / beside:.2g}, or --vllm_num_engines "
            f"{max(1, host.slots // engines.per_node)}",
        )


def _exists(config: Config, role: str) -> bool:
    return {
        "critic": config.has_critic,
        "reference": config.has_reference,
        "reward": config.has_reward_model,
    }.get(role, True)


def shares_policy(config: Config, role: str) -> bool:
    """Whether it lies on the policy's slots."""
    return _host(config, role) == "policy"


def _host(config: Config, role: str) -> str | None:
    """Whose slots a role shares; None: it has its own."""
    if role == "policy":
        return None
    if config.colocate_all_models:
        return None if role == "engine" and config.async_train else "policy"
    if config.colocate_actor_ref and role == "reference":
        return "policy"
    return "critic" if config.colocate_critic_reward and role == "reward" else None


def _group(config: Config, role: str) -> Group:
    nodes, per_node = {
        "policy": (config.actor_num_nodes, config.actor_num_gpus_per_node),
        "critic": (config.critic_num_nodes, config.critic_num_gpus_per_node),
        "reference": (config.ref_num_nodes, config.ref_num_gpus_per_node),
        "reward": (config.reward_num_nodes, config.reward_num_gpus_per_node),
        "engine": (config.vllm_num_engines, engine_slots(config)),
    }[role]
    return Group(role=role, nodes=nodes, per_node=per_node)


def engine_slots(config: Config) -> int:
    """Of one engine: a transformers engine computes on one, whatever vLLM's ranks would be."""
    hf = config.rollout_engine == "hf" or (config.rollout_engine == "auto" and not is_exact(config))
    return 1 if hf else config.vllm.tensor_parallel_size


def is_exact(config: Config) -> bool:
    """Whether vLLM can tell the log-probabilities that training goes by."""
    return config.top_p == 1 or config.temperature == 1


def _size(config: Config, role: str) -> int:
    return _group(config, role).slots


def _resources(config: Config, groups: tuple[Group, ...]) -> dict[str, float]:
    """What each slot needs for every one of its groups: the most that any of them asks for."""
    asked = {
        "policy": config.actor_resources,
        "critic": config.critic_resources,
        "reference": config.ref_resources,
        "reward": config.reward_resources,
        "engine": config.vllm_resources,
    }
    wanted: dict[str, float] = {}
    for group in groups:
        for name, amount in asked[group.role].amounts.items():
            wanted[name] = max(amount, wanted.get(name, 0.0))
    return wanted
