"""Models as Hugging Face directories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from trainer.contract import Written, sha256, sync_directory


def write(
    model: Any,
    tokenizer: Any,
    directory: Path,
    *,
    weights: dict[str, Any] | None = None,
    beside: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> None:
    """Replace `directory` by model and tokeniser; a crash leaves the old one or the new one.

    `weights` go in place of the model's own tensors. `beside` are further files of tensors, which
    transformers has no place for.
    """
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(temporary, state_dict=weights)
    tokenizer.save_pretrained(temporary)
    for name, tensors in (beside or {}).items():
        save_file({key: tensor.detach().cpu() for key, tensor in tensors.items()}, temporary / name)
    for path in temporary.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o644)  # safetensors leaves its files to their owner alone
    shutil.rmtree(directory, ignore_errors=True)
    temporary.rename(directory)
    sync_directory(directory.parent)


def written(directory: Path) -> list[Written]:
    """The files of what was exported there, with their checksums."""
    return [
        Written(path.name, path.stat().st_size, sha256(path))
        for path in sorted(directory.iterdir())
    ]
