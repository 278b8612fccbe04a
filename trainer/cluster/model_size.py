"""How large a model is, from the files of its directory, without loading it. Torch-free."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNGATED = ("gpt2", "gpt_neox", "opt", "bloom", "falcon", "phi", "gptj", "gpt_bigcode", "starcoder2")
"""Model types whose feed-forward layers have two matrices; others' have three."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    parameters: int
    hidden: int
    layers: int
    intermediate: int

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA's two factors at every linear layer; fewer where some are left out."""
        attention, feed_forward = 4 * 2 * self.hidden, 3 * (self.hidden + self.intermediate)
        return self.layers * rank * (attention + feed_forward)


def read(model: str) -> ModelSize | None:
    """The size of the model in directory `model`; None where it is not on this disk.

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
    """Elements of all tensors in the safetensors files; None where there are none."""
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
    """Embeddings, attention with its groups of keys, and the feed-forward layers; no biases."""
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
    """None where it has none of these."""
    return next((config[name] for name in names if config.get(name)), None)
