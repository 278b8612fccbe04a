"""Tensors whose values are in a file on another node, and are read in parts."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor


class RangeReader(Protocol):
    """A file on another node."""

    def read(self, start: int, size: int) -> bytearray:
        """Return `size` bytes from `start` on. Raises OSError."""


class RemoteTensor(Tensor):
    """Shape and type of a tensor whose values are in a file on the head's node."""

    file: RangeReader
    offset: int

    @classmethod
    def at(
        cls, shape: tuple[int, ...], dtype: torch.dtype, file: RangeReader, offset: int
    ) -> RemoteTensor:
        """`offset`: where the tensor begins in the file, in bytes."""
        remote: RemoteTensor = torch.empty(shape, dtype=dtype, device="meta").as_subclass(cls)
        remote.file, remote.offset = file, offset
        return remote


def part_of(tensor: Tensor, start: int, size: int) -> Tensor:
    """Return [size] of the flat tensor from `start` on; fetch it if the tensor is remote.

    Raises OSError.
    """
    if not isinstance(tensor, RemoteTensor):
        return tensor.flatten()[start : start + size]
    if not size:
        return torch.empty(0, dtype=tensor.dtype)
    width = tensor.dtype.itemsize
    content = tensor.file.read(tensor.offset + start * width, size * width)
    return torch.frombuffer(content, dtype=tensor.dtype)


def whole_of(tensor: Tensor) -> Tensor:
    """Return the tensor with its values. Raises OSError."""
    if not isinstance(tensor, RemoteTensor):
        return tensor
    return part_of(tensor, 0, math.prod(tensor.shape)).view(tensor.shape)
