"""A tree of files that is true to Search-R1's checkpoints; the tensors are empty."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save

HEADER = save({})


def checkpoint(place: Path, step: int, *roles: str) -> Path:
    """Write the weights of actor and critic (or `roles`), and the tokenizer at the end."""
    for role in roles or ("actor", "critic"):
        path = place / role / f"global_step_{step}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text("{}")
        names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        for name in names:
            (path / name).write_bytes(HEADER)
        index = {"weight_map": dict(zip("ab", names, strict=True))}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
        (path / "tokenizer_config.json").write_text("{}")
    return path
