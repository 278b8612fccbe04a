"""Estimates what each node needs of the CPUs' memory, before any process starts. Torch-free.

For Ψ parameters on N ranks, of which Ψ' are trained, in bytes; G ranks are on a node:

- while the processes start: 4Ψ for each rank whose weights are read in fp32; 4Ψ/N at ZeRO stage 3.
  Weights that are read in bf16, as at stages 1 and 2, stay pages of the model's files: 2Ψ for all
  processes of the node together.
- while they train: what sleeps or is offloaded, and the copies of the training state. A copy takes
  12Ψ'/N of each rank, and 4Ψ/N with --enable_ema. A checkpoint that is being written needs one.
  Snapshots need two, the newest complete one and the next, and two of the node before in the ring.
- beside it: the standby ranks; the weights for engines that read them from shared memory, once on
  a node; the copy of --save_hf_ckpt on the policy's first node, in fp32 with --enable_ema; the
  longest possible samples of a step, on each node, since each may be the driver's.

Not counted: the programs themselves with their CUDA contexts, images of samples, and the pages of
files that an engine reads: it copies each tensor to its GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contract.launch import standby_ranks
from contract.resources import NodeResources, gib
from trainer.cluster import memory_estimate
from trainer.cluster.bin_packing import Assignment
from trainer.config import layout
from trainer.config.layout import Role

if TYPE_CHECKING:
    from trainer.cluster.memory_estimate import SizeOf
    from trainer.config.config import Config

FILLED = 0.8
"""Share of a node's memory that the estimate may fill; the rest is for what it leaves out."""
SNAPSHOTS = 2
"""Copies of a rank's state that snapshots need at a time, on each of two nodes."""
COMPLETION_BYTES = 13
"""Of a token as an engine returns it: token, log-probability and version of 4 bytes, mask of 1."""
PART_BYTES = 9
"""Of a token as ranks get it: without its version."""
SCORE_BYTES = 4
"""Of a token, for each model that computes a number of it."""
SNAPSHOT_SHARE = 0.5
"""Share of what Ray counts as a node's memory that snapshots may take if no flag says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMemory:
    """What a node needs of the CPUs' memory, in bytes."""

    files: int
    """While processes start: pages of models' files that they share."""
    read: int
    """While processes start: weights in another type than the files have."""
    moved: int
    """What sleeps or is offloaded."""
    copies: int
    """Copies of the training state of its own ranks."""
    replicas: int
    """Copies of another node's ranks."""
    published: int
    """Weights in shared memory, for engines."""
    exported: int
    """The copy of the weights that --save_hf_ckpt writes."""
    samples: int
    """The samples of a step, and those under way."""
    standby: int
    """Standby ranks."""

    @property
    def starting(self) -> int:
        return self.files + self.read

    @property
    def training(self) -> int:
        beside = self.published + self.exported + self.samples + self.standby
        return self.moved + self.copies + self.replicas + beside

    @property
    def need(self) -> int:
        return max(self.starting, self.training)


def of_nodes(
    config: Config,
    found: Assignment,
    nodes: Sequence[NodeResources],
    size_of: SizeOf | None = None,
) -> Mapping[str, NodeMemory]:
    """Return the memory of each node by name. Empty without GPUs, or if a size is unknown."""
    files: dict[str, dict[tuple[str, ...], int]] = {node.name: {} for node in nodes}
    read, moved, copy, ranks = ({node.name: 0 for node in nodes} for _ in range(4))
    if found.shortfalls or not found.on_gpus:
        return {}
    for pool in found.layout.pools:
        for group in pool.groups:
            for slots in pool.slots_of(group.role):
                ranks[found.node_of(pool, slots[0])] += 1
            if group.role == Role.ENGINE:
                continue
            need = memory_estimate.of(config, found.layout, group.role, size_of)
            if need is None:
                return {}
            models = tuple(memory_estimate.models(config, group.role))
            for name in found.nodes[pool.name][: group.nodes]:
                files[name][models] = need.files
                read[name] += group.per_node * need.read
                moved[name] += group.per_node * need.host
                copy[name] += group.per_node * need.copy
    published, exported = _weights(config, found, size_of)
    snapshots = SNAPSHOTS if _have_snapshots(config, nodes, copy) else 0
    written = 0 if config.disable_ds_ckpt else 1
    most = {node.name: standby_ranks.most(node.memory) for node in nodes}
    return {
        name: NodeMemory(
            files=sum(files[name].values()),
            read=read[name],
            moved=moved[name],
            copies=(snapshots + written) * copy[name],
            replicas=snapshots * _others(copy, name),
            published=published.get(name, 0),
            exported=exported.get(name, 0),
            samples=_samples(config),
            standby=standby_ranks.RANK_BYTES * min(max(ranks.values()), most[name]),
        )
        for name in copy
    }


def _weights(
    config: Config, found: Assignment, size_of: SizeOf | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of whole copies of the policy by node: for engines, for --save_hf_ckpt."""
    engine = memory_estimate.of(config, found.layout, Role.ENGINE, size_of)
    if engine is None:
        return {}, {}
    whole = engine.weights * layout.engine_slots(config)
    first, engines = (
        found.nodes[found.layout.pool_of(role).name] for role in (Role.POLICY, Role.ENGINE)
    )
    by_memory = not layout.may_be_vllm(config) or config.vllm.sync_backend == "shared_memory"
    saved = 2 * whole if config.train.enable_ema and config.mixed_precision else whole
    return (
        dict.fromkeys([first[0], *engines], whole) if by_memory else {},
        {first[0]: saved} if config.save_hf_ckpt else {},
    )


def _samples(config: Config) -> int:
    """Return the bytes of samples of the longest length: under way, divided, and scored."""
    tokens = config.completions_per_step * config.longest_sample
    models = 1 + config.has_critic + config.kl.has_reference
    steps = 1 + config.allowed_staleness
    return tokens * (steps * COMPLETION_BYTES + PART_BYTES + models * SCORE_BYTES)


def _have_snapshots(
    config: Config, nodes: Sequence[NodeResources], copy: Mapping[str, int]
) -> bool:
    """Return whether snapshots are on, and within their limit: else they are off at once."""
    if config.peer_snapshot != "auto" or len(nodes) < 2:
        return False
    given = config.peer_snapshot_memory
    for node in nodes:
        held = SNAPSHOTS * (copy[node.name] + _others(copy, node.name))
        limit = SNAPSHOT_SHARE * node.memory if given is None else given * 1e9
        if held > limit and (node.memory or given is not None):
            return False
    return True


def _others(copy: Mapping[str, int], node: str) -> int:
    """Return the bytes of the node whose copies take most: any may be the one before."""
    return max((size for name, size in copy.items() if name != node), default=0)


def fullest(
    needs: Mapping[str, NodeMemory], nodes: Sequence[NodeResources]
) -> tuple[NodeResources, NodeMemory] | None:
    """Return the node that its need fills most, and the need; None if none is known."""
    known = [(node, needs[node.name]) for node in nodes if node.name in needs]
    return max(known, key=lambda one: (_filled(*one), one[1].need), default=None)


def _filled(node: NodeResources, need: NodeMemory) -> float:
    return need.need / node.memory if node.memory else 0.0


def row(
    config: Config, found: Assignment, nodes: Sequence[NodeResources]
) -> dict[str, int | str | None] | None:
    """Return the need of the fullest node as JSON; None if it is unknown."""
    most = fullest(of_nodes(config, found, nodes), nodes)
    if most is None:
        return None
    node, need = most
    return {
        "node": node.name,
        "need_bytes": need.need,
        "memory_bytes": node.memory or None,
        "files": need.files,
        "read": need.read,
        "moved": need.moved,
        "copies": need.copies,
        "replicas": need.replicas,
        "published": need.published,
        "exported": need.exported,
        "samples": need.samples,
        "standby": need.standby,
        "lacking": lacking(config, found, nodes),
    }


def lacking(
    config: Config,
    found: Assignment,
    nodes: Sequence[NodeResources],
    size_of: SizeOf | None = None,
    *,
    more: Sequence[str] = (),
) -> str | None:
    """Return the node whose memory may not suffice, and what would do; None if all suffice.

    `more`: what would also do.
    """
    fullest_one = fullest(of_nodes(config, found, nodes, size_of), nodes)
    if fullest_one is None or _filled(*fullest_one) <= FILLED:
        return None
    node, need = fullest_one
    doing = "to load the models" if need.starting >= need.training else "while it trains"
    *most, last = *_ways(config, found, nodes, size_of), *more
    ways = f"{', '.join(most)} or {last}" if most else last
    return (
        f"{node.name} needs {gib(need.need)} of the CPUs' memory {doing}, and has "
        f"{gib(node.memory)}; {gib(FILLED * node.memory)} of it may be planned. "
        f"What would do: {ways}"
    )


def _ways(
    config: Config,
    found: Assignment,
    nodes: Sequence[NodeResources],
    size_of: SizeOf | None,
) -> Iterator[str]:
    """Yields the changes of which each alone suffices; at last a node with more memory."""
    for words, flags in _changes(config):
        needs = of_nodes(config.with_flags(flags), found, nodes, size_of)
        most = fullest(needs, nodes)
        if most and _filled(*most) <= FILLED:
            yield words
    most = fullest(of_nodes(config, found, nodes, size_of), nodes)
    assert most is not None
    node, need = most
    if ranks := _ranks_that_fit(config, found, node, need):
        yield f"{ranks} rank{'s' if ranks > 1 else ''} of each model on a node, on more nodes"
    yield f"nodes with {gib(need.need / FILLED)}"


def _changes(config: Config) -> Iterator[tuple[str, dict[str, bool | int | str]]]:
    """Yields flags that lower what a node needs, in words and as values."""
    sharding = config.sharding
    if config.peer_snapshot == "auto":
        yield "--peer_snapshot off", {"peer_snapshot": "off"}
    if not config.mixed_precision:
        yield "--param_dtype bf16", {"param_dtype": "bf16"}
    if config.train.enable_ema:
        yield "no --enable_ema", {"enable_ema": False}
    elif config.policy_ranks > 1:
        for stage in (1, 3):
            if stage > sharding.zero_stage:
                yield f"--zero_stage {stage}", {"zero_stage": stage}
    if sharding.adam_offload:
        yield "no --adam_offload", {"adam_offload": False}
    if sharding.sleep:
        yield "no --deepspeed_enable_sleep", {"deepspeed_enable_sleep": False}
    if config.ref_reward_offload:
        yield "no --ref_reward_offload", {"ref_reward_offload": False}


def _ranks_that_fit(
    config: Config, found: Assignment, node: NodeResources, need: NodeMemory
) -> int:
    """Return the ranks of a model that fit on a node; 0 if none does."""
    groups = (group for pool in found.layout.pools for group in pool.groups)
    most = max(group.per_node for group in groups if group.role != Role.ENGINE)
    room, ranks = FILLED * node.memory, most
    while ranks and max(need.files + need.read * ranks / most, need.training * ranks / most) > room:
        ranks -= 1
    return ranks
