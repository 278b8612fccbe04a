"""Estimates the peak memory of a step on each GPU, before any process starts.

For Ψ parameters on N ranks, of which Ψ' are trained (all, or LoRA's adapters), in bytes:

- weights: 2Ψ in bf16, 4Ψ in fp32; gradients the same of Ψ', but 4Ψ' at stage 0; optimizer: 12Ψ'
  with bf16 (two moments and a copy of the weights in fp32), 8Ψ' in fp32. ZeRO stage 1 divides
  the optimizer by N, stage 2 the gradients too, stage 3 the weights too (Rajbhandari et al. 2020,
  section 3 and figure 1). --adam_offload moves the optimizer to the CPU's memory, where each rank
  also keeps its shard of the newest checkpoint while it is written, 12Ψ'/N.
- activations, for t tokens in a pass, of a layer of width h: 34th in 16 bits without the attention
  matrix, which flash attention never stores (Korthikanti et al. 2022, equation 1 and section 4);
  twice that in fp32. With --gradient_checkpointing a layer keeps only its input, 2th (4th), and
  one layer at a time is computed again.
- loading, before any step: the weights, in fp32 if the model is trained. With ZeRO stage 3 a rank
  has its shard and, for a moment, the whole largest tensor or layer: less than in a step.
- an engine: --vllm_gpu_memory_utilization of the GPU, which it fills with its keys and values.

Not counted: buffers of the communication library, fragmentation, the CUDA context (about 1 GB
together). If several roles share a GPU, the estimate is the largest of three phases. A role that
sleeps or is offloaded holds nothing outside its own phase.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import reward_models
from trainer.config.layout import Layout, ResourcePool, Role, engine_slots

if TYPE_CHECKING:
    from trainer.config.config import Config


UNGATED = ("gpt2", "gpt_neox", "opt", "bloom", "falcon", "phi", "gptj", "gpt_bigcode", "starcoder2")
"""Model types whose feed-forward layers have two matrices; other types have three."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    parameters: int
    hidden: int
    layers: int
    intermediate: int

    def adapters(self, rank: int) -> int:
        """Returns the parameters of LoRA adapters at every linear layer: an upper bound."""
        attention, feed_forward = 4 * 2 * self.hidden, 3 * (self.hidden + self.intermediate)
        return self.layers * rank * (attention + feed_forward)


def read_size(model: str) -> ModelSize | None:
    """Returns the size of the model in directory `model`; None if it is not on this disk.

    Parameters are counted from the headers of safetensors files, which hold every tensor's shape
    (https://huggingface.co/docs/safetensors), else computed from config.json.
    """
    directory = Path(model)
    try:
        whole = json.loads((directory / "config.json").read_text())
        config: dict[str, Any] = whole | whole.get("text_config", {})
        hidden = int(_first(config, "hidden_size", "n_embd", "d_model"))
        layers = int(_first(config, "num_hidden_layers", "n_layer", "num_layers"))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    inner = config.get("intermediate_size") or config.get("n_inner") or config.get("ffn_dim")
    size = ModelSize(0, hidden, layers, int(inner or 4 * hidden))
    parameters = _counted(directory) or _computed(config, size)
    return ModelSize(parameters, size.hidden, size.layers, size.intermediate)


def _counted(directory: Path) -> int | None:
    """Returns the elements of all tensors in the safetensors files; None without such files."""
    files = sorted(directory.glob("*.safetensors"))
    index = directory / "model.safetensors.index.json"
    try:
        if index.is_file():
            named = set(json.loads(index.read_text())["weight_map"].values())
            files = [directory / name for name in sorted(named)]
        return sum(_elements(path) for path in files) or None
    except (OSError, ValueError, KeyError, AttributeError, TypeError, struct.error):
        return None


def _elements(path: Path) -> int:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if "shape" in entry)


def _computed(config: Mapping[str, Any], size: ModelSize) -> int:
    """Returns the parameters of embeddings, attention and feed-forward layers, without biases."""
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 1)
    width = int(config.get("head_dim") or size.hidden // heads)
    keys = int(config.get("num_key_value_heads") or heads)
    attention = size.hidden * width * (2 * heads + 2 * keys)
    matrices = 2 if config.get("model_type") in UNGATED else 3
    embeddings = int(config.get("vocab_size") or 0) * size.hidden
    tied = config.get("tie_word_embeddings", True)
    layer = attention + matrices * size.hidden * size.intermediate + 2 * size.hidden
    return size.layers * layer + embeddings * (1 if tied else 2) + size.hidden


def _first(config: Mapping[str, Any], *names: str) -> Any:
    """Returns the first value that is set; None if none is."""
    return next((config[name] for name in names if config.get(name)), None)


ENGINE_ALONE, ENGINE_BESIDE = 0.9, 0.5
"""Default share of a GPU's memory for an engine: vLLM's default, and the share that OpenRLHF's
guides give to an engine beside models."""
TRAINED = (Role.POLICY, Role.CRITIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Memory of one process of a role, in bytes."""

    weights: int
    gradients: int = 0
    optimizer: int = 0
    forward: int = 0
    """Activations of a pass without gradients."""
    update: int = 0
    """Activations of a pass with gradients."""
    host: int = 0
    """In the CPU's memory, not on the GPU."""
    idle: int = 0
    """On the GPU while other roles work."""

    def at(self, phase: str) -> int:
        """Returns the bytes on the GPU in a phase of the step: rollout, forward or update."""
        if phase == "forward":
            return self.weights + self.optimizer + self.forward
        if phase == "update" and self.update:
            return self.weights + self.gradients + self.optimizer + self.update
        return self.idle

    @property
    def peak(self) -> int:
        return max(self.at(phase) for phase in ("rollout", "forward", "update"))


def of(config: Config, layout: Layout, role: str) -> ProcessMemory | None:
    """Returns the memory of a process of `role`; None if the model is not on this disk."""
    sizes = [size for model in _models(config, role) if (size := read_size(model))]
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
        idle=sum(part.idle for part in parts),
    )


def sentence(config: Config, layout: Layout) -> str | None:
    """Returns a sentence with the peak of each role; None if no model is on this disk."""
    roles = [
        group.role for pool in layout.pools for group in pool.groups if group.role != Role.ENGINE
    ]
    needs = {role: of(config, layout, role) for role in roles}
    peaks = [f"{role} {need.peak / 1e9:.3g} GB" for role, need in needs.items() if need]
    return f"planned for each process of a step: {', '.join(peaks)}" if peaks else None


def engine_share(config: Config, layout: Layout) -> float:
    """Returns the share of a GPU's memory that one engine takes."""
    pool = layout.pool_of(Role.ENGINE)
    models = [group for group in pool.groups if group.role != Role.ENGINE]
    if config.vllm.gpu_memory_utilization is not None:
        return config.vllm.gpu_memory_utilization
    beside = pool.procs_per_slot - len(models)
    return (ENGINE_BESIDE if models else ENGINE_ALONE) / beside


def least_gpu(config: Config, layout: Layout, pool: ResourcePool) -> int | None:
    """Returns the least bytes of each GPU of `pool`; None if a model is not on this disk.

    Of M bytes the engines take a share u. The models need (1 - u)M during the rollout, and in the
    other phases too unless the engines sleep. uM must hold the engine's weights.
    """
    memories = {group.role: of(config, layout, group.role) for group in pool.groups}
    known = {role: memory for role, memory in memories.items() if memory is not None}
    if len(known) < len(memories):
        return None
    engine = known.pop(Role.ENGINE, None)
    training = max(sum(m.at(phase) for m in known.values()) for phase in ("forward", "update"))
    if engine is None:
        return training
    share = engine_share(config, layout)
    beside = pool.procs_per_slot - len(known)
    left = 1 - min(share * beside, 0.99)
    resident = sum(memory.idle for memory in known.values())
    awake = 1.0 if config.vllm.enable_sleep else left
    return int(max(engine.weights / share, resident / left, training / awake))


def _models(config: Config, role: str) -> list[str]:
    if role == Role.REWARD:
        return list(reward_models.names(config))
    return [config.critic_pretrain or config.pretrain] if role == Role.CRITIC else [config.pretrain]


def _process(config: Config, role: str, size: ModelSize, ranks: int) -> ProcessMemory:
    if role == Role.ENGINE:
        # Each rank of an engine holds a part of the weights, in the policy's precision.
        return ProcessMemory(weights=_width(config) * size.parameters // engine_slots(config))
    return _trained(config, size, ranks) if role in TRAINED else _frozen(config, role, size, ranks)


def _trained(config: Config, size: ModelSize, ranks: int) -> ProcessMemory:
    learnt = size.adapters(config.lora.rank) if config.lora.rank else size.parameters
    stage, width = config.sharding.zero_stage, _width(config)
    weights = width * size.parameters // (ranks if stage >= 3 else 1)
    gradients = (width if stage else 4) * learnt // (ranks if stage >= 2 else 1)
    optimizer = (12 if config.mixed_precision else 8) * learnt // (ranks if stage >= 1 else 1)
    on_host = optimizer if config.sharding.adam_offload else 0
    kept = weights + optimizer - on_host
    asleep = config.sharding.sleep
    return ProcessMemory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer - on_host,
        forward=_layer(config, size, _scoring_tokens(config)),
        update=_activations(config, size),
        host=on_host + (kept if asleep else 0) + _copy(config, learnt, ranks),
        idle=0 if asleep else kept,
    )


def _copy(config: Config, learnt: int, ranks: int) -> int:
    """Returns the bytes of the copy of a rank's checkpoint shard: fp32 weights and moments."""
    return 0 if config.disable_ds_ckpt else 12 * learnt // ranks


def _frozen(config: Config, role: str, size: ModelSize, ranks: int) -> ProcessMemory:
    """The reference is sharded only at ZeRO stage 3. Every reward process has whole models."""
    sharded = role == Role.REFERENCE and config.sharding.zero_stage >= 3
    weights = _width(config) * size.parameters // (ranks if sharded else 1)
    offloaded = config.ref_reward_offload
    return ProcessMemory(
        weights=weights,
        forward=_layer(config, size, _scoring_tokens(config)),
        host=weights if offloaded else 0,
        idle=0 if offloaded else weights,
    )


def _activations(config: Config, size: ModelSize) -> int:
    longest = config.prompt_max_len + config.sampling.max_new_tokens
    tokens = config.train.train_max_tokens_per_gpu
    if not config.train.use_dynamic_batch:
        tokens = config.train.micro_train_batch_size * longest
    layer = _layer(config, size, tokens)
    if not config.gradient_checkpointing:
        return size.layers * layer
    return layer + size.layers * _width(config) * tokens * size.hidden


def _layer(config: Config, size: ModelSize, tokens: int) -> int:
    return 17 * _width(config) * tokens * size.hidden


def _scoring_tokens(config: Config) -> int:
    if config.train.use_dynamic_batch:
        return config.scoring_tokens
    return config.micro_rollout_batch_size * (
        config.prompt_max_len + config.sampling.max_new_tokens
    )


def _width(config: Config) -> int:
    """Returns the bytes of one weight."""
    return 2 if config.mixed_precision else 4
