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

from contract.files import umask
from contract.manifest import WrittenFile, sha256
from trainer.models import model_dir


def write(
    model: Any,
    tokenizer: Any,
    directory: Path,
    *,
    weights: dict[str, Any] | None = None,
    beside: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> list[WrittenFile]:
    """Write model and tokeniser in place of the model in `directory`. Returns their files.

    Other files and directories there stay. `weights` replace the model's own tensors. `beside`:
    further files of tensors that transformers does not write.
    """
    umask.restore()
    temporary = model_dir.incoming(directory)
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
    files = [
        WrittenFile(path.name, path.stat().st_size, sha256(path))
        for path in sorted(temporary.iterdir())
    ]
    model_dir.replace(directory)
    return files


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
