"""Where a file of a training state has each tensor, so that parts of it can be read alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint import state

Content = dict[str, Any]
"""What `state.save` writes: the fields of a State."""


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Where a file has a tensor."""

    offset: int
    """In bytes."""
    shape: tuple[int, ...]
    dtype: torch.dtype


def index(path: Path) -> Content:
    """Return a file's content with a TensorRange for each tensor. Reads no large tensor.

    Raises UnknownShardError, and OSError. Scalars, such as Adam's counters, are there themselves.
    """
    places = state.read(path, "meta")
    values = state.read(path, "cpu", mmap=True)
    return {part: _placed(places[part], values[part]) for part in places}


def _placed(places: Any, values: Any) -> Any:
    if isinstance(places, dict):
        return {key: _placed(place, values[key]) for key, place in places.items()}
    if not isinstance(places, Tensor):
        return values
    start = getattr(places.untyped_storage(), "_checkpoint_offset", None)
    if start is None or places.dim() == 0 or not places.is_contiguous():
        return values.clone()
    offset = start + places.storage_offset() * places.element_size()
    return TensorRange(offset, tuple(places.shape), places.dtype)
