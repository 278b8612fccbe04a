"""One actor's state in one file, durable once `save` has returned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.types import ModelMismatchError


def save(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values to `path`. Raises OSError where the disk does not take it."""
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path) -> dict[str, Any]:
    """What `save` wrote, on the CPU; executes nothing that the file contains."""
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


def check_fits(saved: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
    """Raises ModelMismatchError where names or shapes of parameters differ."""
    if unknown := sorted(saved.keys() ^ model.keys()):
        where = "the checkpoint" if unknown[0] in saved else "the model"
        raise ModelMismatchError(f"only {where} has {unknown[0]}")
    for name, tensor in saved.items():
        if tensor.shape != model[name].shape:
            shapes = (
                f"{list(tensor.shape)} in the checkpoint, {list(model[name].shape)} in the model"
            )
            raise ModelMismatchError(f"{name} is {shapes}")
