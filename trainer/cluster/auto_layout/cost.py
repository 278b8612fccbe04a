"""Estimates the seconds of a training step, to compare ways to save memory.

The terms, for Ψ parameters on N ranks and t tokens of a rank's samples in a step (half of the
longest sample each, as a guess). Arithmetic counts the parameters that a token goes through:

- arithmetic: 6Ψt FLOPs for an update, 2Ψt for each pass that only scores (Kaplan et al. 2020,
  section 2.1). Frozen weights under adapters need no gradients: 4Ψt. --gradient_checkpointing
  computes the forward pass again: 2Ψt.
- passes: each starts the kernels of every layer, and reads the weights, whatever its size.
- gradients: a ring moves 2 bytes for each byte that is reduced on all ranks, 1 for each that is
  gathered or scattered. Stage 0 reduces 4Ψ' an update, stage 1 2Ψ' and gathers 2Ψ'. DeepSpeed
  reduces 2Ψ' after every pass from stage 2 on; stage 3 also gathers 2Ψ for each direction of it.
- moves: what sleeps or is offloaded goes over PCIe each step; DeepSpeed's AdamW on the CPUs reads
  and writes their memory.
- decoding: each token of the longest completions reads an engine's weights once for its batch.

The rates below are those of an H100 with NVLink and a network card for each GPU. Measured on an
H200: an update reached 0.35 of the peak, and a pass cost 0.4 ms a layer to start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

from trainer.cluster import memory_estimate
from trainer.cluster.memory_estimate import TRAINED
from trainer.config.layout import Layout, Role, engine_slots

if TYPE_CHECKING:
    from trainer.cluster.memory_estimate import SizeOf
    from trainer.cluster.model_size import ModelSize
    from trainer.config.config import Config

FLOPS = 0.4 * 989e12
"""Of a rank, a second: the share of the peak that dense passes reach."""
READ = 0.8 * 3.35e12
"""Bytes of GPU memory, a second."""
INSIDE, BETWEEN = 300e9, 40e9
"""Bytes that a GPU sends a second to GPUs of its node, and of another node."""
PCIE, HOST = 25e9, 20e9
"""Bytes a second between a GPU and the CPUs' memory; and in it, for one rank of a full node."""
START, START_SCORING = 0.4e-3, 0.13e-3
"""Seconds to start the kernels of a layer, with and without gradients."""
USUAL = 0.5
"""Length of a usual sample, as a share of the longest."""
AT_A_TIME = 256
"""Samples that an engine writes at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of a training step, by what takes them. One model computes at a time."""

    arithmetic: float = 0.0
    passes: float = 0.0
    gradients: float = 0.0
    moves: float = 0.0
    decoding: float = 0.0

    @property
    def seconds(self) -> float:
        total: float = sum(astuple(self))
        return total


def of_step(config: Config, layout: Layout, size_of: SizeOf) -> StepCost | None:
    """Returns the seconds of a step; None if the size of a model is unknown."""
    parts: list[StepCost] = []
    for pool in layout.pools:
        for group in pool.groups:
            for model in memory_estimate.models(config, group.role):
                if (size := size_of(model)) is None:
                    return None
                parts += _of_role(config, layout, group.role, size)
    names = (field.name for field in fields(StepCost))
    return StepCost(**{name: sum(getattr(part, name) for part in parts) for name in names})


def passes_an_update(config: Config, ranks: int | None = None) -> int:
    """Returns the passes of each of `ranks` for an update, of the policy's if not given."""
    tokens = config.train.train_batch_size * USUAL * config.longest_sample
    return math.ceil(tokens / (ranks or config.policy_ranks) / tokens_a_pass(config))


def tokens_a_pass(config: Config) -> int:
    """Returns the tokens of a full training pass of usual samples."""
    train = config.train
    if train.use_dynamic_batch:
        return max(train.train_max_tokens_per_gpu, config.longest_sample)
    return max(1, int(train.micro_train_batch_size * USUAL * config.longest_sample))


def _of_role(config: Config, layout: Layout, role: Role, size: ModelSize) -> Iterator[StepCost]:
    if role == Role.ENGINE:
        yield _decoding(config, size)
        return
    ranks = len(layout.pool_of(role).slots_of(role))
    tokens = config.samples_per_step * USUAL * config.longest_sample / ranks
    if role in TRAINED:
        spans_nodes = layout.pool_of(role).nodes > 1
        yield _training(config, size, ranks, BETWEEN if spans_nodes else INSIDE)
    if role != Role.POLICY or config.needs_old_log_probs:
        yield _scoring(config, role, size, tokens)


def _scoring(config: Config, role: Role, size: ModelSize, tokens: float) -> StepCost:
    """Returns the cost of a pass without gradients over a rank's samples."""
    each = config.micro_rollout_batch_size * USUAL * config.longest_sample
    if config.train.use_dynamic_batch:
        each = max(config.scoring_tokens, config.longest_sample)
    passes = math.ceil(tokens / each)
    frozen = role in (Role.REFERENCE, Role.REWARD)
    moved = 2 * size.parameters if config.ref_reward_offload and frozen else 0
    return StepCost(
        arithmetic=2 * size.active * tokens / FLOPS,
        passes=passes * (size.layers * START_SCORING + 2 * size.parameters / READ),
        moves=moved / PCIE,
    )


def _training(config: Config, size: ModelSize, ranks: int, link: float) -> StepCost:
    sharding, lora = config.sharding, config.lora.rank
    learnt = size.adapters(lora) if lora else size.parameters
    updates = config.updates_per_step
    tokens = config.train.train_batch_size * USUAL * config.longest_sample / ranks
    passes = passes_an_update(config, ranks)
    flops = (4 if lora else 6) + 2 * config.gradient_checkpointing
    read = 2 * size.parameters * (4 if config.gradient_checkpointing else 3) / READ
    stage = sharding.zero_stage
    held = 2 * size.parameters / (ranks if stage >= 3 else 1)
    if not sharding.adam_offload:
        held += 12 * learnt / (ranks if stage else 1)
    return StepCost(
        arithmetic=updates * flops * size.active * tokens / FLOPS,
        passes=updates * passes * (size.layers * START + read),
        gradients=updates * _reduced(config, size, learnt, ranks, passes) / link,
        moves=(2 * held if sharding.sleep else 0) / PCIE
        + updates * (12 * learnt / ranks / HOST if sharding.adam_offload else 0),
    )


def _reduced(config: Config, size: ModelSize, learnt: int, ranks: int, passes: int) -> float:
    """Returns the bytes that a rank sends for one update."""
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


def _decoding(config: Config, size: ModelSize) -> StepCost:
    """Returns the cost of the longest completions, which the engines write at the same time."""
    slots = engine_slots(config)
    samples = config.samples_per_step / config.vllm_num_engines
    rounds, together = math.ceil(samples / AT_A_TIME), min(samples, AT_A_TIME)
    token = max(2 * size.parameters / READ, 2 * size.active * together / FLOPS) / slots
    tokens = rounds * config.sampling.max_new_tokens
    return StepCost(decoding=tokens * (token + size.layers * START_SCORING / 10))
