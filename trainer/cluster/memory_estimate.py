"""Estimates the peak memory of a step on each GPU, before any process starts.

For Ψ parameters on N ranks, of which Ψ' are trained (all, or LoRA's adapters), in bytes:

- weights: 2Ψ in bf16, 4Ψ in fp32; gradients the same of Ψ', but 4Ψ' at stage 0; optimizer: 12Ψ'
  with bf16 (two moments and a copy of the weights in fp32), 8Ψ' in fp32. ZeRO stage 1 divides
  the optimizer by N, stage 2 the gradients too, stage 3 the weights too (Rajbhandari et al. 2020,
  section 3 and figure 1). --adam_offload moves the optimizer to the CPU's memory (`host_memory`).
- the update under ZeRO: a bucket of at most 5e8 gradients (two with --overlap_comm at stages 1 and
  2), then copies of a rank's gradients, one in their own type and one in fp32. --enable_ema: 4Ψ of
  the policy, always.
- activations, for t tokens in a pass, of a layer of width h, without the attention matrix, which
  flash attention never stores: 34th in 16 bits, if its feed-forward part has two matrices of width
  4h (Korthikanti et al. 2022, equation 1 and section 4). With RMSNorm and three matrices of width i
  (Llama, Qwen): 20th + 8ti. Twice that in fp32. With --gradient_checkpointing a layer keeps only
  its input, 2th (4th), and one layer at a time is computed again. A pass without gradients keeps
  nothing; at its widest, in a feed-forward layer, it has 8th + 6ti (two matrices: 8th + 4ti).
- --ring_attn_size n: 1/n of t, and in one layer at a time 16th more, which ranks send and receive.
- loading: the weights of a trained model in fp32, then what it keeps. DeepSpeed's stages 1 and 2
  round to bf16 before; with stage 3 a rank has its shard.
- publishing from GPU to GPU: the buckets that a rank of the policy lends, and one that it gathers.
- an engine of vLLM: --vllm_gpu_memory_utilization of the GPU, which it fills with its keys and
  values; its weights and a bucket of new ones while it is asleep and the policy publishes. Asleep
  it keeps 3.5 GB: its CUDA context, the graphs (1.5 GB; none with --enforce_eager) and what torch
  and the kernels hold outside vLLM's pool; 3.5 GB more for the communication of several GPUs. vLLM
  itself logs what is "still in use": 4.1 to 4.8 GiB on one GPU (NVIDIA-NeMo/RL issue 2619,
  vllm-project/vllm issue 17117), 7.0 GiB on each of eight, of which 1.5 GB are graphs (47654).
- an engine of transformers: its weights, and a bucket of new ones; while it writes also the keys
  and values of its samples, with room for half as many more, and a pass over their prompts.

Not counted: buffers of the communication library, fragmentation, the CUDA context, and a block of
the head's logits with its gradients (about 1.5 GB together; the last 0.4 GB, on NVIDIA's GPUs). If
several roles share a GPU, the estimate is the largest of the phases. A role that sleeps or is
offloaded holds nothing outside its own phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.cluster.model_size import ModelSize, known_size
from trainer.config import reward_models
from trainer.config.layout import (
    Layout,
    ResourcePool,
    Role,
    engine_slots,
    may_be_vllm,
    of_a_rank,
    ranks_of_a_sample,
)

if TYPE_CHECKING:
    from trainer.config.config import Config

ENGINE_ALONE, ENGINE_BESIDE = 0.9, 0.5
"""Default share of a GPU's memory for an engine: vLLM's default, and the share that OpenRLHF's
guides give to an engine beside models."""
TRAINED = (Role.POLICY, Role.CRITIC)
REDUCED = 500_000_000
"""Gradients that DeepSpeed reduces at a time: its default."""
GPU_BUCKET_BYTES = 2**30
"""Weights that go from GPU to GPU at a time: a bucket, or one tensor that is larger."""
LENT_BUCKETS = 2
"""Buckets in a rank's GPU memory at a time: it fills one while engines read the other."""
ASLEEP, GRAPHS, COMMUNICATION = 3_500_000_000, 1_500_000_000, 3_500_000_000
"""Bytes on a GPU that vLLM keeps asleep: in all; of it, for graphs; more, with several GPUs."""
PHASES = ("load", "publish", "rollout", "forward", "update")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Memory of one process of a role, in bytes."""

    weights: int
    gradients: int = 0
    optimizer: int = 0
    forward: int = 0
    """Activations of a pass without gradients."""
    update: int = 0
    """Activations of a pass with gradients, or what the optimizer's step needs if that is more."""
    host: int = 0
    """In the CPU's memory, not on the GPU, without copies."""
    copy: int = 0
    """A copy of its share of the training state, in the CPU's memory."""
    read: int = 0
    """In the CPU's memory while it starts, of its own: weights that are not pages of files."""
    files: int = 0
    """In the CPU's memory while it starts: pages of files that it shares with other processes."""
    idle: int = 0
    """On the GPU while other roles work."""
    load: int = 0
    """On the GPU while the process starts."""
    average: int = 0
    """A moving average of the weights, which never leaves the GPU."""
    published: int = 0
    """Weights on their way to engines."""
    scores_rollouts: bool = False
    """Works while engines write."""

    def at(self, phase: str) -> int:
        """Return the bytes on the GPU in one of PHASES.

        While the policy publishes, policy and critic also copy their state for a checkpoint.
        """
        kept = self.weights + self.optimizer
        if phase == "load":
            return self.load + self.average
        if phase == "forward" or (phase == "rollout" and self.scores_rollouts):
            return kept + self.forward + self.average
        if phase == "update" and self.update:
            return kept + self.gradients + self.update + self.average
        if phase == "publish" and self.update:
            return kept + self.average + self.published
        return self.idle + self.average

    @property
    def peak(self) -> int:
        return max(self.at(phase) for phase in PHASES)


SizeOf = Callable[[str], ModelSize | None]


def of(
    config: Config, layout: Layout, role: str, size_of: SizeOf | None = None
) -> ProcessMemory | None:
    """Return the memory of a process of `role`; None if the size of a model is unknown."""
    sizes = [size for model in models(config, role) if (size := (size_of or known_size)(model))]
    if not sizes:
        return None
    ranks = len(layout.pool_of(role).slots_of(role))
    parts = [_process(config, role, size, ranks) for size in sizes]
    return ProcessMemory(
        weights=sum(part.weights for part in parts),
        gradients=parts[0].gradients,
        optimizer=parts[0].optimizer,
        forward=max(part.forward for part in parts),
        update=parts[0].update,
        host=sum(part.host for part in parts),
        copy=parts[0].copy,
        read=sum(part.read for part in parts),
        files=sum(part.files for part in parts),
        idle=sum(part.idle for part in parts),
        load=sum(part.load for part in parts),
        average=parts[0].average,
        published=parts[0].published,
        scores_rollouts=parts[0].scores_rollouts,
    )


def sentence(config: Config, layout: Layout) -> str | None:
    """Return a sentence with the peak of each role; None if no model's size is known."""
    roles = [
        group.role for pool in layout.pools for group in pool.groups if group.role != Role.ENGINE
    ]
    needs = {role: of(config, layout, role) for role in roles}
    peaks = [f"{role} {need.peak / 1e9:.3g} GB" for role, need in needs.items() if need]
    return f"estimated memory per process: {', '.join(peaks)}" if peaks else None


def engine_share(config: Config, layout: Layout) -> float:
    """Return the share of a GPU's memory that one engine takes; 0 if it takes what it needs."""
    if not may_be_vllm(config):
        return 0.0
    pool = layout.pool_of(Role.ENGINE)
    models = [group for group in pool.groups if group.role != Role.ENGINE]
    if config.vllm.gpu_memory_utilization is not None:
        return config.vllm.gpu_memory_utilization
    beside = pool.procs_per_slot - len(models)
    return (ENGINE_BESIDE if models else ENGINE_ALONE) / beside


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """What the roles of a pool hold on each GPU."""

    phases: Mapping[str, Mapping[str, int]]
    """Phase → role → bytes. An engine is among the roles in phases in which it has no share."""
    engine_weights: int = 0
    """Bytes on one GPU of the weights of an engine that takes a share; 0 without such engines."""
    engine_share: float = 0.0
    """The share of the GPU that one engine takes."""
    engines: int = 0
    """The engines of one GPU."""
    sleeps: bool = False
    """Engines have their share in rollouts only."""

    def share(self, phase: str) -> float:
        """Return the share of the GPU that engines take in a phase."""
        asleep = self.sleeps and phase != "rollout"
        return 0.0 if asleep else min(self.engine_share * self.engines, 0.99)

    def needs(self, memory: int) -> Mapping[str, int]:
        """Return the bytes that are used of a GPU with `memory` bytes, by phase."""
        return {
            phase: int(self.share(phase) * memory) + sum(held.values())
            for phase, held in self.phases.items()
        }

    @property
    def least(self) -> int:
        """The bytes of the smallest GPU that has room in every phase."""
        phases = (sum(held.values()) / (1 - self.share(name)) for name, held in self.phases.items())
        return int(max(*phases, self.engine_weights / (self.engine_share or 1)))


def of_pool(
    config: Config, layout: Layout, pool: ResourcePool, size_of: SizeOf | None = None
) -> PoolMemory | None:
    """Return the memory of each GPU of `pool`; None if the size of a model is unknown."""
    memories = {group.role: of(config, layout, group.role, size_of) for group in pool.groups}
    known = {role: memory for role, memory in memories.items() if memory is not None}
    if len(known) < len(memories):
        return None
    engine = known.pop(Role.ENGINE, None)
    phases: dict[str, dict[str, int]] = {
        phase: {role: memory.at(phase) for role, memory in known.items()} for phase in PHASES
    }
    if engine is None:
        return PoolMemory(phases)
    beside, sleeps = pool.procs_per_slot - len(known), config.vllm.enable_sleep
    takes_share = may_be_vllm(config)
    for phase, held in phases.items():
        if not takes_share or (sleeps and phase in ("load", "publish")):
            held[Role.ENGINE] = _of_engines(engine, beside, phase, sleeps=sleeps)
        if takes_share and sleeps and phase != "rollout":
            held[Role.ENGINE] = held.get(Role.ENGINE, 0) + beside * _asleep(config)
    if not takes_share:
        return PoolMemory(phases)
    return PoolMemory(phases, engine.weights, engine_share(config, layout), beside, sleeps)


def _of_engines(engine: ProcessMemory, count: int, phase: str, *, sleeps: bool) -> int:
    """Return what engines without a share hold of a GPU in a phase.

    A process may also be replaced while they have their weights.
    """
    if phase == "rollout":
        return count * (engine.weights + engine.forward)
    if phase == "publish":
        return count * (engine.weights + min(GPU_BUCKET_BYTES, engine.weights))
    return count * engine.weights if phase == "load" or not sleeps else 0


def _asleep(config: Config) -> int:
    """Return what a sleeping engine of vLLM keeps of each of its GPUs."""
    graphs = 0 if config.vllm.enforce_eager else GRAPHS
    several = COMMUNICATION if config.vllm.tensor_parallel_size > 1 else 0
    return ASLEEP - GRAPHS + graphs + several


def models(config: Config, role: str) -> list[str]:
    """Return the names or directories of the models that `role` holds."""
    if role == Role.REWARD:
        return list(reward_models.names(config))
    return [config.critic_pretrain or config.pretrain] if role == Role.CRITIC else [config.pretrain]


def _process(config: Config, role: str, size: ModelSize, ranks: int) -> ProcessMemory:
    if role == Role.ENGINE:
        # Each rank of an engine holds a part of the weights, in the policy's precision.
        weights = _width(config) * size.parameters // engine_slots(config)
        return ProcessMemory(weights=weights, forward=_writing(config, size))
    made = _trained if role in TRAINED else _frozen
    return made(config, role, size, ranks)


def _trained(config: Config, role: str, size: ModelSize, ranks: int) -> ProcessMemory:
    learnt = size.adapters(config.lora.rank) if config.lora.rank else size.parameters
    stage, width = config.sharding.zero_stage, _width(config)
    average = 4 * size.parameters if config.train.enable_ema and role == Role.POLICY else 0
    weights = width * size.parameters // (ranks if stage >= 3 else 1)
    gradients = (width if stage else 4) * learnt // (ranks if stage >= 2 else 1)
    optimizer = (12 if config.mixed_precision else 8) * learnt // (ranks if stage >= 1 else 1)
    # Without ZeRO --adam_offload has no effect.
    on_host = optimizer if config.sharding.adam_offload and stage else 0
    kept = weights + optimizer - on_host
    asleep = config.sharding.sleep
    rounded = stage in (1, 2) and config.mixed_precision and not average
    loaded = (2 if rounded else 4) * size.parameters // (ranks if stage >= 3 else 1)
    buffers = 2 if config.sharding.overlap_comm and stage < 3 else 1
    bucket = buffers * width * min(REDUCED, learnt) if stage else 0
    step = (4 + width) * learnt // ranks if stage and config.mixed_precision and not on_host else 0
    return ProcessMemory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer - on_host,
        forward=_forward(config, role, size),
        update=max(_activations(config, size) + bucket, step),
        host=on_host + (kept if asleep else 0),
        copy=(12 * learnt + average) // ranks,
        read=0 if rounded else loaded,
        files=loaded if rounded else 0,
        idle=0 if asleep else kept,
        load=max(loaded, kept),
        average=average,
        published=_published(config, size) if role == Role.POLICY else 0,
    )


def _published(config: Config, size: ModelSize) -> int:
    """Return the bytes of a rank's buffers for engines, and of a bucket that it gathers."""
    if not may_be_vllm(config) or config.vllm.sync_backend == "shared_memory":
        return 0
    whole = _width(config) * size.parameters
    return min(LENT_BUCKETS * GPU_BUCKET_BYTES, whole) + min(GPU_BUCKET_BYTES, whole)


def _frozen(config: Config, role: str, size: ModelSize, ranks: int) -> ProcessMemory:
    """The reference is sharded only at ZeRO stage 3. Every reward process has whole models."""
    sharded = role == Role.REFERENCE and config.sharding.zero_stage >= 3
    weights = _width(config) * size.parameters // (ranks if sharded else 1)
    offloaded, own = config.ref_reward_offload, sharded or not config.mixed_precision
    return ProcessMemory(
        weights=weights,
        forward=_forward(config, role, size),
        host=weights if offloaded else 0,
        read=weights if own else 0,
        files=0 if own else weights,
        idle=0 if offloaded else weights,
        load=weights,
        scores_rollouts=role == Role.REWARD and _scores_rollouts(config),
    )


def _scores_rollouts(config: Config) -> bool:
    """Return whether the reward models work while the engines hold their memory."""
    return config.eval_dataset is not None or config.filtering.enabled


def _activations(config: Config, size: ModelSize) -> int:
    role, longest = Role.POLICY, config.longest_sample  # as for the critic
    tokens = of_a_rank(config, role, config.train.micro_train_batch_size * longest)
    if config.train.use_dynamic_batch:  # a longer sample has a pass of its own
        tokens = max(config.train.train_max_tokens_per_gpu, of_a_rank(config, role, longest))
    layer = _layer(config, size, tokens)
    seen = _seen(config, size, tokens, trained=not config.freeze_visual_encoder)
    seen += _exchanged(config, role, size, tokens)
    if not config.gradient_checkpointing:
        return size.layers * layer + seen
    return layer + size.layers * _width(config) * tokens * size.hidden + seen


def _exchanged(config: Config, role: str, size: ModelSize, tokens: int) -> int:
    """Return what ranks that share samples send and receive in a layer's attention."""
    return _width(config) * 8 * size.hidden * tokens if ranks_of_a_sample(config, role) > 1 else 0


def _seen(config: Config, size: ModelSize, tokens: int, *, trained: bool) -> int:
    """Return the activations of the visual encoder, if prompts are images and nothing else."""
    encoder = size.vision
    if encoder is None:
        return 0
    shown = tokens * config.prompt_max_len // config.longest_sample
    patch = _width(config) * encoder.patches * shown
    if not trained:
        return patch * (4 * encoder.hidden + 3 * encoder.intermediate)
    layer = patch * (10 * encoder.hidden + 4 * encoder.intermediate)
    if not config.gradient_checkpointing:
        return encoder.layers * layer
    return layer + encoder.layers * patch * encoder.hidden


def _layer(config: Config, size: ModelSize, tokens: int) -> int:
    values = 10 * size.hidden + 4 * size.intermediate if size.gated else 17 * size.hidden
    return _width(config) * tokens * values


def _forward(config: Config, role: str, size: ModelSize) -> int:
    """Return the activations of a pass that keeps nothing: those at a layer's widest place."""
    tokens = of_a_rank(config, role, config.micro_rollout_batch_size * config.longest_sample)
    if config.train.use_dynamic_batch:
        tokens = max(config.scoring_tokens, of_a_rank(config, role, config.longest_sample))
    wide = (3 if size.gated else 2) * size.intermediate
    beside = _seen(config, size, tokens, trained=False) + _exchanged(config, role, size, tokens)
    return _width(config) * tokens * (4 * size.hidden + wide) + beside


def _writing(config: Config, size: ModelSize) -> int:
    """Return what a transformers engine needs to write, besides its weights."""
    samples = config.micro_rollout_batch_size
    keys = size.hidden * size.key_heads // size.heads if size.heads else size.hidden
    cache = 2 * size.layers * keys * samples * config.longest_sample
    wide = (3 if size.gated else 2) * size.intermediate
    prompts = samples * config.prompt_max_len * (4 * size.hidden + wide)
    return _width(config) * (cache + cache // 2 + prompts)


def _width(config: Config) -> int:
    """Return the bytes of one weight."""
    return 2 if config.mixed_precision else 4
