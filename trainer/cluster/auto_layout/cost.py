"""Estimates the seconds of a training step, to compare ways to save memory.

The terms, for Ψ parameters on N ranks and t tokens of a rank's samples in a step (half of the
longest sample each, as a guess). Arithmetic counts the parameters that a token goes through:

- arithmetic: 6Ψt FLOPs for an update, 2Ψt for each pass that only scores (Kaplan et al. 2020,
  section 2.1). Frozen weights under adapters need no gradients: 4Ψt. --gradient_checkpointing
  computes the forward pass again: 2Ψt.
- passes: each starts the kernels of every layer, and reads the weights, whatever its size.
- gradients: a ring moves 2 bytes for each byte that is reduced on all ranks, 1 for each that is
  gathered or scattered. Stage 0 reduces 4Ψ' an update, stage 1 2Ψ' and gathers 2Ψ'. DeepSpeed
  reduces 2Ψ' after every pass from stage 2 on; stage 3 also gathers 2Ψ for each direction of it,
  and 2Ψ for each pass that only scores.
- exchanged: ranks that share samples by --ring_attn_size send 8 t h bytes a layer, and as many
  again for each direction that a pass has, for queries, keys, values and the output of attention.
- moves: what sleeps or is offloaded goes over PCIe each step; DeepSpeed's AdamW on the CPUs reads
  and writes their memory.
- decoding: each token of the longest completions reads an engine's weights once for its batch.

The rates are shares of the GPU's peaks (`contract.resources`), with a network card for each GPU.
Measured on an H200: an update reached 0.35 of the peak, and a pass cost 0.4 ms a layer to start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import TYPE_CHECKING

from contract.resources import GPU_MODELS, gpu_model
from trainer.cluster import memory_estimate
from trainer.cluster.memory_estimate import TRAINED
from trainer.config.layout import Layout, Role, engine_slots, of_a_rank, ranks_of_a_sample

if TYPE_CHECKING:
    from contract.resources import GpuModel, NodeResources
    from trainer.cluster.memory_estimate import SizeOf
    from trainer.cluster.model_size import ModelSize
    from trainer.config.config import Config

FLOPS, READ = 0.4, 0.8
"""Shares of the peaks of arithmetic and memory that dense passes reach."""
LINKS = 0.65
"""Share of a node's measured bus bandwidth that DeepSpeed's messages reach."""
BETWEEN, HOST = 40e9, 20e9
"""Bytes a second that a GPU sends to another node; and in the CPUs' memory, for one rank of a
full node."""
PCIE = 25e9
"""Bytes a second between a GPU and the CPUs' memory by PCIe 5; half with each generation less."""
START, START_SCORING = 0.4e-3, 0.13e-3
"""Seconds to start the kernels of a layer, with and without gradients."""
USUAL = 0.5
"""Length of a usual sample, as a share of the longest."""
AT_A_TIME = 256
"""Samples that an engine writes at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a GPU does in a second."""

    gpu: str
    """Its model."""
    flops: float
    read: float
    """Bytes of its memory."""
    inside: float
    """Bytes that it sends to GPUs of its node."""
    pcie: float
    assumed: str = ""
    """The model that the driver names, if its rates are unknown."""


def _rates(model: GpuModel) -> Rates:
    pcie = PCIE * 2.0 ** (model.pcie_generation - 5)
    # Of links that nobody measured an H100's bandwidth is assumed.
    linked = LINKS * (model.all_reduce_gbs or H100_MODEL.all_reduce_gbs) * 1e9
    return Rates(
        gpu=model.name,
        flops=FLOPS * model.tflops * 1e12,
        read=READ * model.memory_gbs * 1e9,
        inside=linked if model.links else pcie,
        pcie=pcie,
    )


H100_MODEL = next(model for model in GPU_MODELS if model.name == "H100")
H100 = _rates(H100_MODEL)


def rates_of(nodes: Sequence[NodeResources]) -> Rates:
    """Return the rates of the slowest GPU of the nodes; an H100's for an unknown model."""
    names = {node.gpu_model for node in nodes if node.gpus}
    found = {name: gpu_model(name) for name in names}
    unknown = sorted(name for name, model in found.items() if model is None)
    known = [_rates(model) for model in found.values() if model]
    if unknown:
        known.append(replace(H100, assumed=unknown[-1] or "unknown"))
    return min(known or [H100], key=lambda rates: rates.flops)


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The processes of a role."""

    count: int
    per_node: int
    link: float
    """Bytes that one sends to the others in a second."""
    rates: Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of a training step, by what takes them. One model computes at a time."""

    arithmetic: float = 0.0
    passes: float = 0.0
    gradients: float = 0.0
    exchanged: float = 0.0
    moves: float = 0.0
    decoding: float = 0.0

    @property
    def seconds(self) -> float:
        total: float = sum(astuple(self))
        return total


def of_step(
    config: Config, layout: Layout, size_of: SizeOf, rates: Rates = H100
) -> StepCost | None:
    """Return the seconds of a step; None if the size of a model is unknown."""
    parts: list[StepCost] = []
    for pool in layout.pools:
        link = BETWEEN if pool.nodes > 1 else rates.inside
        for group in pool.groups:
            ranks = _Ranks(len(pool.slots_of(group.role)), group.per_node, link, rates)
            for model in memory_estimate.models(config, group.role):
                if (size := size_of(model)) is None:
                    return None
                parts += _of_role(config, group.role, size, ranks)
    names = (field.name for field in fields(StepCost))
    return StepCost(**{name: sum(getattr(part, name) for part in parts) for name in names})


def passes_an_update(config: Config, ranks: int | None = None) -> int:
    """Return the passes of each of `ranks` for an update, of the policy's if not given."""
    tokens = config.train.train_batch_size * USUAL * config.longest_sample
    return math.ceil(tokens / (ranks or config.policy_ranks) / tokens_a_pass(config))


def tokens_a_pass(config: Config) -> int:
    """Return the tokens of a full training pass of usual samples."""
    train = config.train
    if train.use_dynamic_batch:
        longest = of_a_rank(config, Role.POLICY, config.longest_sample)
        return max(train.train_max_tokens_per_gpu, longest)
    samples = train.micro_train_batch_size / config.ring_attn_size
    return max(1, int(samples * USUAL * config.longest_sample))


def _of_role(config: Config, role: Role, size: ModelSize, ranks: _Ranks) -> Iterator[StepCost]:
    if role == Role.ENGINE:
        yield _decoding(config, size, ranks.rates)
        return
    if role in TRAINED:
        yield _training(config, size, ranks)
    if role != Role.POLICY or config.needs_old_log_probs:
        yield _scoring(config, role, size, ranks)


def _scoring(config: Config, role: Role, size: ModelSize, ranks: _Ranks) -> StepCost:
    """Return the cost of a pass without gradients over a rank's samples."""
    tokens = config.samples_per_step * USUAL * config.longest_sample / ranks.count
    sharing = ranks_of_a_sample(config, role)
    each = config.micro_rollout_batch_size / sharing * USUAL * config.longest_sample
    if config.train.use_dynamic_batch:
        longest = of_a_rank(config, role, config.longest_sample)
        each = max(config.scoring_tokens, longest)
    passes = math.ceil(tokens / each)
    frozen = role in (Role.REFERENCE, Role.REWARD)
    # Reward models are whole on every rank.
    sharded = config.sharding.zero_stage >= 3 and role != Role.REWARD and ranks.count > 1
    held = 2 * size.parameters / (ranks.count if sharded else 1)
    rates = ranks.rates
    return StepCost(
        arithmetic=2 * size.active * tokens / rates.flops,
        passes=passes * (size.layers * START_SCORING + 2 * size.parameters / rates.read),
        gradients=passes * 2 * size.parameters / ranks.link if sharded else 0.0,
        exchanged=_exchanged(size, tokens, sharing, ranks),
        moves=held / rates.pcie if config.ref_reward_offload and frozen else 0.0,
    )


def _training(config: Config, size: ModelSize, of: _Ranks) -> StepCost:
    ranks, rates = of.count, of.rates
    sharding, lora = config.sharding, config.lora.rank
    learnt = size.adapters(lora) if lora else size.parameters
    updates = config.updates_per_step
    tokens = config.train.train_batch_size * USUAL * config.longest_sample / ranks
    passes = passes_an_update(config, ranks)
    flops = (4 if lora else 6) + 2 * config.gradient_checkpointing
    read = 2 * size.parameters * (4 if config.gradient_checkpointing else 3) / rates.read
    stage = sharding.zero_stage
    held = 2 * size.parameters / (ranks if stage >= 3 else 1)
    if not sharding.adam_offload:
        held += 12 * learnt / (ranks if stage else 1)
    return StepCost(
        arithmetic=updates * flops * size.active * tokens / rates.flops,
        passes=updates * passes * (size.layers * START + read),
        gradients=updates * _reduced(config, size, learnt, ranks, passes) / of.link,
        exchanged=updates
        * (3 if config.gradient_checkpointing else 2)
        * _exchanged(size, tokens, config.ring_attn_size, of),
        moves=(2 * held if sharding.sleep else 0) / rates.pcie
        + updates * (12 * learnt / ranks / HOST if sharding.adam_offload else 0),
    )


def _exchanged(size: ModelSize, tokens: float, sharing: int, ranks: _Ranks) -> float:
    """Return the seconds in which a pass exchanges a rank's tokens for heads, and back."""
    elements = 4 * size.hidden * size.layers * tokens
    near = ranks.per_node % sharing == 0
    return 2 * elements * (1 - 1 / sharing) / (ranks.rates.inside if near else ranks.link)


def _reduced(config: Config, size: ModelSize, learnt: int, ranks: int, passes: int) -> float:
    """Return the bytes that a rank sends for one update."""
    stage = config.sharding.zero_stage
    if ranks == 1:
        return 0.0
    if stage == 0:
        return 2 * 4 * learnt
    if stage == 1:
        return (2 + 1) * 2 * learnt
    if stage == 2:
        return (2 * passes + 1) * 2 * learnt
    return passes * (2 * 2 * learnt + 2 * 2 * size.parameters)


def _decoding(config: Config, size: ModelSize, rates: Rates) -> StepCost:
    """Return the cost of the longest completions, which the engines write at the same time."""
    slots = engine_slots(config)
    samples = config.completions_per_step / config.vllm_num_engines
    rounds, together = math.ceil(samples / AT_A_TIME), min(samples, AT_A_TIME)
    token = max(2 * size.parameters / rates.read, 2 * size.active * together / rates.flops)
    tokens = rounds * config.sampling.max_new_tokens
    return StepCost(decoding=tokens * (token / slots + size.layers * START_SCORING / 10))
