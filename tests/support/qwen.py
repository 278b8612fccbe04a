"""The configurations of Qwen 2.5 models, as files that need no download."""

from __future__ import annotations

import json
from pathlib import Path

SHAPES = {
    "0.5B": (896, 24, 4864, 14, 2, 151_936, True),
    "7B": (3584, 28, 18_944, 28, 4, 152_064, False),
    "32B": (5120, 64, 27_648, 40, 8, 152_064, False),
    "72B": (8192, 80, 29_568, 64, 8, 152_064, False),
}
KEYS = (
    *("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size", "tie_word_embeddings"),
)
"""From the models' config.json: https://huggingface.co/Qwen."""


def name_of(size: str) -> str:
    return f"Qwen/Qwen2.5-{size}-Instruct"


def write_config(directory: Path, size: str) -> Path:
    """Return a directory with the model's config.json, without weights."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "qwen2", **dict(zip(KEYS, SHAPES[size], strict=True))}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_cache(root: Path) -> Path:
    """Return a cache of the hub that has the configuration of every size, and nothing else."""
    for size in SHAPES:
        cache(root, name_of(size), size)
    return root


def cache(root: Path, name: str, size: str) -> None:
    """Puts the configuration of this size into the hub's cache as that of model `name`."""
    repository = root / f"models--{name.replace('/', '--')}"
    write_config(repository / "snapshots" / "0123", size)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
