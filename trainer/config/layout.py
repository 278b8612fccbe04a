"""The layout of a run: the GPUs of each role, on how many nodes, and shared with which roles.

A slot is a GPU, or a fraction of a CPU on machines without GPUs. `trainer.cluster.bin_packing`
decides which of the two, and on which node. Pure: the head checks its nodes with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from contract.durations import counted
from contract.options import Fault
from trainer.config.config import Config


class Role(StrEnum):
    """What a process of the run does."""

    POLICY = "policy"
    CRITIC = "critic"
    REFERENCE = "reference"
    REWARD = "reward"
    ENGINE = "engine"


PREFIXES = {
    Role.REFERENCE: "ref",
    Role.REWARD: "reward",
    Role.CRITIC: "critic",
    Role.POLICY: "actor",
    Role.ENGINE: "vllm",
}
"""Role → the prefix of its flags, in the order in which roles get nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleProcesses:
    """The processes of one role."""

    role: Role
    nodes: int
    """Nodes, each with the same number of ranks. For engines: the number of engines."""
    per_node: int
    """Slots on each node. For engines: the slots of one engine."""

    @property
    def slots(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePool:
    """Slots of one role, or of several roles that share them."""

    groups: tuple[RoleProcesses, ...]
    """The size of the first is the size of the pool."""
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
    def distinct_nodes(self) -> bool:
        """Whether the pool's nodes must be distinct. Several engines may share a node."""
        return self.groups[0].role != Role.ENGINE

    @property
    def procs_per_slot(self) -> int:
        """The most processes on one slot. Each gets an equal fraction of the slot."""
        return sum(-(-group.slots // self.slots) for group in self.groups)

    def slots_of(self, role: str) -> list[tuple[int, ...]]:
        """Return the slots of each process of a role: one, or one for each tensor parallel rank.

        The pool's slots are numbered node by node. A smaller role has the first slots of each node.
        """
        (group,) = (group for group in self.groups if group.role == role)
        if role == Role.ENGINE:
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
    """All slots of a run, in the order in which pools get nodes."""

    pools: tuple[ResourcePool, ...]

    @property
    def slots(self) -> int:
        return sum(pool.slots for pool in self.pools)

    def pool_of(self, role: str) -> ResourcePool:
        return next(p for p in self.pools if any(group.role == role for group in p.groups))

    def with_engines_in(self, host: ResourcePool) -> Layout:
        """Return the same layout with the engines on the slots of `host`."""
        engines = self.pool_of(Role.ENGINE)
        shared = replace(host, groups=host.groups + engines.groups)
        rest = (pool for pool in self.pools if pool is not engines)
        return Layout(tuple(shared if pool is host else pool for pool in rest))


def of(config: Config) -> Layout:
    """Return the layout of flags without `faults`."""
    groups = {role: _group(config, role) for role in PREFIXES if _exists(config, role)}
    pools = []
    for role, group in groups.items():
        if _host(config, role) in groups:
            continue
        guests = [g for guest, g in groups.items() if _host(config, guest) == role]
        sharing = (group, *guests)
        resources = resources_of(config, (one.role for one in sharing))
        pools.append(ResourcePool(groups=sharing, resources=resources))
    return Layout(tuple(pools))


def settled(config: Config, given: Set[str]) -> Config:
    """Return the flags with the size of each role that shares slots and has no size of its own."""
    found: dict[str, Any] = {}
    for role, prefix in PREFIXES.items():
        host = _host(config, role)
        if role == Role.ENGINE or host is None:
            continue
        flags = (f"{prefix}_num_nodes", f"{prefix}_num_gpus_per_node")
        if not _size(config, role) or not given & set(flags):
            size = _group(config, host)
            found |= zip(flags, (size.nodes, size.per_node), strict=True)
    return replace(config, **found)


def faults(config: Config) -> Iterator[Fault]:
    """Yields the faults of a layout that no cluster could hold."""
    for role, prefix in PREFIXES.items():
        if role == Role.ENGINE or not _exists(config, role):
            continue
        host, size = _host(config, role), _size(config, role)
        if not size:
            remedy = f"Give at least 1 node and 1 GPU of it{SHARING.get(role, '')}"
            yield Fault(f"--{prefix}_num_nodes", "0", f"leaves the {role} no GPU", remedy)
        elif host and _exists(config, host):
            yield from _guest_faults(_group(config, role), _group(config, host))
    yield from _engine_faults(config)
    yield from shared_sample_faults(config)


SHARING = {
    Role.REFERENCE: ", or --colocate_actor_ref, or --colocate_all_models",
    Role.REWARD: ", or --colocate_critic_reward, or --colocate_all_models",
    Role.CRITIC: ", or --colocate_all_models",
}
"""Role → another way to give it GPUs."""


def _guest_faults(guest: RoleProcesses, host: RoleProcesses) -> Iterator[Fault]:
    if guest.nodes > host.nodes or guest.per_node > host.per_node:
        yield Fault(
            f"--{PREFIXES[guest.role]}_num_nodes",
            f"{guest.nodes} x {guest.per_node} GPUs",
            f"is more than the {host.nodes} x {host.per_node} of the {host.role}, which it shares",
            "Give 0 for all of them, or at most as many",
        )


def _engine_faults(config: Config) -> Iterator[Fault]:
    """Yields faults of engines that share the policy's GPUs and do not fit there."""
    if _host(config, Role.ENGINE) is None or not _size(config, Role.POLICY):
        return
    host, engines = _group(config, Role.POLICY), _group(config, Role.ENGINE)
    if host.per_node % engines.per_node:
        of_node = counted(host.per_node, "GPU")
        divisors = [str(n) for n in range(1, host.per_node + 1) if host.per_node % n == 0]
        yield Fault(
            "--vllm_tensor_parallel_size",
            str(engines.per_node),
            f"does not divide the {of_node} of a node, which the engines share",
            f"Give one of {', '.join(divisors)}" if len(divisors) > 1 else "Give 1",
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


def shared_sample_faults(config: Config) -> Iterator[Fault]:
    """Yields a fault for each model with ranks that are not in groups that share samples."""
    size = config.ring_attn_size
    for role in (Role.POLICY, Role.CRITIC, Role.REFERENCE):
        ranks = _size(config, role)
        if _exists(config, role) and ranks % size:
            fitting = [str(n) for n in range(1, ranks + 1) if ranks % n == 0]
            yield Fault(
                "--ring_attn_size",
                str(size),
                f"does not divide the {counted(ranks, 'rank')} of the {role}",
                f"{' or '.join(fitting)} would, or other GPUs by --{PREFIXES[role]}_num_nodes and "
                f"--{PREFIXES[role]}_num_gpus_per_node",
            )


def _exists(config: Config, role: Role) -> bool:
    return {
        Role.CRITIC: config.has_critic,
        Role.REFERENCE: config.kl.has_reference,
        Role.REWARD: config.has_reward_model,
    }.get(role, True)


def shares_policy(config: Config, role: Role) -> bool:
    """Whether the role shares the policy's slots."""
    return _host(config, role) == Role.POLICY


def _host(config: Config, role: Role) -> Role | None:
    """Return the role whose slots `role` shares; None if it has slots of its own."""
    if role == Role.POLICY:
        return None
    if config.colocate_all_models:
        return None if role == Role.ENGINE and config.async_train else Role.POLICY
    if config.colocate_actor_ref and role == Role.REFERENCE:
        return Role.POLICY
    return Role.CRITIC if config.colocate_critic_reward and role == Role.REWARD else None


def _group(config: Config, role: Role) -> RoleProcesses:
    nodes, per_node = {
        Role.POLICY: (config.actor_num_nodes, config.actor_num_gpus_per_node),
        Role.CRITIC: (config.critic_num_nodes, config.critic_num_gpus_per_node),
        Role.REFERENCE: (config.ref_num_nodes, config.ref_num_gpus_per_node),
        Role.REWARD: (config.reward_num_nodes, config.reward_num_gpus_per_node),
        Role.ENGINE: (config.vllm_num_engines, engine_slots(config)),
    }[role]
    return RoleProcesses(role=role, nodes=nodes, per_node=per_node)


def engine_slots(config: Config) -> int:
    """Return the slots of one engine. A transformers engine has one, whatever vLLM would have."""
    hf = config.rollout_engine == "hf" or (config.rollout_engine == "auto" and not is_exact(config))
    return 1 if hf else config.vllm.tensor_parallel_size


def may_be_vllm(config: Config) -> bool:
    """Return whether the engines may be vLLM's; vLLM's flags have no effect on others."""
    return config.rollout_engine != "hf" and is_exact(config)


def is_exact(config: Config) -> bool:
    """Whether vLLM can return the log-probabilities that training needs."""
    return config.sampling.top_p == 1 or config.sampling.temperature == 1


def _size(config: Config, role: Role) -> int:
    return _group(config, role).slots


def ranks_of_a_sample(config: Config, role: str) -> int:
    """Return the ranks of a role that share each sample. A reward model is whole in a process."""
    return 1 if role == Role.REWARD else config.ring_attn_size


def of_a_rank(config: Config, role: str, tokens: int) -> int:
    """Return how many tokens of a pass one of the ranks has that share its samples."""
    return -(-tokens // ranks_of_a_sample(config, role))


def resources_of(config: Config, roles: Iterable[Role]) -> dict[str, float]:
    """Return the custom resources of each slot: the most that any of its roles asks for."""
    asked = {
        Role.POLICY: config.actor_resources,
        Role.CRITIC: config.critic_resources,
        Role.REFERENCE: config.ref_resources,
        Role.REWARD: config.reward_resources,
        Role.ENGINE: config.vllm_resources,
    }
    wanted: dict[str, float] = {}
    for role in roles:
        for name, amount in asked[role].values.items():
            wanted[name] = max(amount, wanted.get(name, 0.0))
    return wanted
