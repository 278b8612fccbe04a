"""Writes models as Hugging Face directories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from contract.manifest import WrittenFile, sha256
from contract.run_dir import sync_directory


def write(
    model: Any,
    tokenizer: Any,
    directory: Path,
    *,
    weights: dict[str, Any] | None = None,
    beside: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> None:
    """Replace `directory` by model and tokeniser; a crash leaves the old or the new directory.

    `weights` replace the model's own tensors. `beside`: further files of tensors that transformers
    does not write.
    """
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _any_generation_config(model, temporary):
        model.save_pretrained(temporary, state_dict=weights)
    tokenizer.save_pretrained(temporary)
    for name, tensors in (beside or {}).items():
        save_file({key: tensor.detach().cpu() for key, tensor in tensors.items()}, temporary / name)
    for path in temporary.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o644)  # safetensors makes files that only their owner can read
    shutil.rmtree(directory, ignore_errors=True)
    temporary.rename(directory)
    sync_directory(directory.parent)


@contextmanager
def _any_generation_config(model: Any, directory: Path) -> Iterator[None]:
    """Save the generation config in the block as the base model had it, valid or not.

    transformers loads sampling fields without do_sample, but refuses to save them.
    """
    own: Any = getattr(model, "generation_config", None)
    try:
        if own is not None:
            own.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig()
        try:
            yield
        finally:
            model.generation_config = own
        own.to_json_file(directory / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])
    else:
        yield


def written(directory: Path) -> list[WrittenFile]:
    """Return the files of an exported model, with their checksums."""
    return [
        WrittenFile(path.name, path.stat().st_size, sha256(path))
        for path in sorted(directory.iterdir())
    ]
