"""Reads the size of a model from its files, Hugging Face's cache, or its name."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contract.files.hf_cache import cached
from trainer.config import architecture

UNGATED = (
    *("gpt2", "gpt_neox", "gpt_neo", "opt", "bloom", "falcon", "phi", "gptj", "gpt_bigcode"),
    *("starcoder2", "codegen", "nemotron", "apertus", "arcee", "nanochat", "jais2"),
)
"""Model types whose feed-forward layers have two matrices; other types have three."""


@dataclass(frozen=True, slots=True)
class VisionSize:
    hidden: int
    layers: int
    intermediate: int
    patches: int
    """Patches of an image for each of its tokens."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    parameters: int
    hidden: int
    layers: int
    intermediate: int
    """Width of a token's feed-forward part: of all experts that it goes through."""
    heads: int = 0
    """Heads of attention; 0 if unknown."""
    key_heads: int = 0
    """Heads of keys and values; 0 if unknown."""
    gated: bool = True
    """A feed-forward layer has three matrices, and not two."""
    inactive: int = 0
    """Parameters of the experts that a token does not go through."""
    vision: VisionSize | None = None
    """The part that sees images; None: there is none."""
    by_name: bool = False
    """The size comes from the model's name, so the numbers are approximate."""

    @property
    def active(self) -> int:
        """The parameters that a token goes through."""
        return self.parameters - self.inactive

    def splits_over(self, ranks: int) -> bool:
        """Return whether an engine can divide the heads and the feed-forward layers over GPUs."""
        copied = self.key_heads and ranks % self.key_heads == 0
        whole = self.heads % ranks == 0 and self.intermediate % ranks == 0
        return whole and (self.key_heads % ranks == 0 or bool(copied))

    def adapters(self, rank: int) -> int:
        """Return the parameters of LoRA adapters at every linear layer: an upper bound."""
        attention, feed_forward = 4 * 2 * self.hidden, 3 * (self.hidden + self.intermediate)
        return self.layers * rank * (attention + feed_forward)


def read_size(model: str) -> ModelSize | None:
    """Return the size of the model in directory `model`; None if it is not on this disk.

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
    inner = int(_first(config, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden)
    experts = _experts(config, layers, inner)
    heads, key_heads = _heads(config)
    size = ModelSize(
        parameters=0,
        hidden=hidden,
        layers=layers,
        intermediate=experts.active if experts else inner,
        heads=heads,
        key_heads=key_heads,
        gated=config.get("model_type") not in UNGATED,
        vision=_vision(whole.get("vision_config") or {}),
    )
    matrices = hidden * (3 if size.gated else 2)
    feed_forward = layers * matrices * inner
    inactive = 0
    if experts:
        every = experts.layers * matrices * experts.width
        inactive = every - experts.layers * matrices * experts.active
        feed_forward = (layers - experts.layers) * matrices * inner + every
    parameters = _counted(directory) or _computed(config, size) + feed_forward
    return replace(size, parameters=parameters, inactive=inactive)


@dataclass(frozen=True, slots=True)
class _Experts:
    layers: int
    """Layers that have experts."""
    width: int
    """Of all experts of a layer together."""
    active: int
    """Of those that a token goes through."""


def _experts(config: Mapping[str, Any], layers: int, inner: int) -> _Experts | None:
    """Return the experts of a mixture; None for a dense model.

    The names are those of transformers' configurations.
    """
    if not architecture.is_mixture(config):
        return None
    count = _number(config, *architecture.EXPERTS)
    width = _number(config, "moe_intermediate_size", "expert_ffn_hidden_size") or inner
    taken = _number(config, "num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts") or 1
    shared = _number(config, "shared_expert_intermediate_size", "shared_intermediate_size")
    shared = shared or width * _number(
        config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts"
    )
    return _Experts(_sparse(config, layers), count * width + shared, taken * width + shared)


def _sparse(config: Mapping[str, Any], layers: int) -> int:
    """Return the number of layers that have experts."""
    if kinds := config.get("mlp_layer_types"):
        return sum(kind != "dense" for kind in kinds)
    dense = _number(config, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    step = _number(
        *(config, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"),
        "expert_layer_period",
    )
    excepted = config.get("mlp_only_layers") or ()
    return sum(
        place >= dense and (place + 1) % (step or 1) == 0 and place not in excepted
        for place in range(layers)
    )


def _number(config: Mapping[str, Any], *names: str) -> int:
    """Return the first number that is set; 0 if none is."""
    found = _first(config, *names)
    return int(max(found) if isinstance(found, list) else found or 0)


def _vision(config: Mapping[str, Any]) -> VisionSize | None:
    """Return the size of a Qwen2.5-VL's encoder; None for another configuration."""
    try:
        hidden, depth, inner = (
            int(config[name]) for name in ("hidden_size", "depth", "intermediate_size")
        )
        return VisionSize(hidden, depth, inner, int(config["spatial_merge_size"]) ** 2)
    except (KeyError, TypeError, ValueError):
        return None


def _counted(directory: Path) -> int | None:
    """Return the elements of all tensors in the safetensors files; None without such files."""
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
    """Return the parameters of embeddings, attention and norms, without biases."""
    embeddings = int(config.get("vocab_size") or 0) * size.hidden
    tied = config.get("tie_word_embeddings", True)
    layer = _attention(config, size) + 2 * size.hidden
    return size.layers * layer + embeddings * (1 if tied else 2) + size.hidden


def _attention(config: Mapping[str, Any], size: ModelSize) -> int:
    """Return the parameters of a layer's attention: with latent keys and values as DeepSeek's."""
    hidden, heads = size.hidden, size.heads
    latent, queries = _number(config, "kv_lora_rank"), _number(config, "q_lora_rank")
    if not latent:
        width = int(config.get("head_dim") or hidden // heads)
        return hidden * width * (2 * heads + 2 * size.key_heads)
    plain, turned = _number(config, "qk_nope_head_dim"), _number(config, "qk_rope_head_dim")
    values = _number(config, "v_head_dim")
    asked = heads * (plain + turned)
    keys = hidden * (latent + turned) + latent * heads * (plain + values)
    return (
        (queries * (hidden + asked) if queries else hidden * asked)
        + keys
        + (heads * values * hidden)
    )


def _heads(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the heads of attention, and those of keys and values."""
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 1)
    return heads, int(config.get("num_key_value_heads") or heads)


def _first(config: Mapping[str, Any], *names: str) -> Any:
    """Return the first value that is set; None if none is."""
    return next((config[name] for name in names if config.get(name)), None)


IN_NAME = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")
"""The parameters in a model's name: 0.5B, 135M, 8x7B."""
ACTIVE_IN_NAME = re.compile(r"-a(\d+(?:\.\d+)?)b(?![a-z0-9])")
"""Those that a token goes through: 30B-A3B."""
TYPICAL = (
    ModelSize(1, 896, 24, 4864, 14, 2),
    ModelSize(1_000_000_000, 1536, 28, 8960, 12, 2),
    ModelSize(2_000_000_000, 2048, 36, 11008, 16, 2),
    ModelSize(5_000_000_000, 4096, 32, 14336, 28, 4),
    ModelSize(10_000_000_000, 5120, 48, 13824, 40, 8),
    ModelSize(20_000_000_000, 5120, 64, 27648, 40, 8),
    ModelSize(50_000_000_000, 8192, 80, 29568, 64, 8),
)
"""Shapes of common models from so many parameters on: Qwen2.5's; for 7 and 8 billion the width of
Llama 3 with the heads of Qwen2.5-7B, whose 28 heads no eight GPUs can share."""
ROUNDED = 1.1
"""A name may round its number down by this factor: Qwen2.5-7B has 7.6 billion parameters."""


def known_size(model: str) -> ModelSize | None:
    """Return the size of a model by its directory, Hugging Face's cache, or its name.

    None if none of them says it.
    """
    return read_size(model) or read_size(str(cached(model))) or named_size(model)


def named_size(model: str) -> ModelSize | None:
    """Return the approximate size that the last part of a model's name says."""
    found = IN_NAME.search(model.rstrip("/").rpartition("/")[2].lower())
    if found is None:
        return None
    experts, number, unit = found.groups()
    stated = float(number) * int(experts or 1) * (1e9 if unit == "b" else 1e6)
    said = ACTIVE_IN_NAME.search(model.lower())
    active = ROUNDED * float(said[1]) * 1e9 if said else ROUNDED * stated
    like = [shape for shape in TYPICAL if shape.parameters <= stated][-1:] or TYPICAL[:1]
    return replace(
        like[0],
        parameters=int(ROUNDED * stated),
        inactive=int(ROUNDED * stated - active),
        by_name=True,
    )
