"""Tensors whose values are in a file on another node, or in several places: read in parts."""

from __future__ import annotations

import math
from collections.abc import Iterable
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


class JoinedTensor(Tensor):
    """Shape and type of a tensor whose values are in several flat tensors."""

    pieces: tuple[tuple[int, Tensor], ...]
    """Each with where it begins in the flat tensor; in order and without a gap."""

    @classmethod
    def of(cls, shape: tuple[int, ...], pieces: Iterable[tuple[int, Tensor]]) -> JoinedTensor:
        """Raises ValueError if the pieces are not the whole."""
        ordered = tuple(sorted(pieces, key=lambda piece: piece[0]))
        end = 0
        for start, piece in ordered:
            if start != end:
                raise ValueError(f"after element {end} comes element {start}")
            end += piece.numel()
        if end != math.prod(shape):
            raise ValueError(f"{end} of {math.prod(shape)} elements are there")
        dtype = ordered[0][1].dtype
        joined: JoinedTensor = torch.empty(shape, dtype=dtype, device="meta").as_subclass(cls)
        joined.pieces = ordered
        return joined


def part_of(tensor: Tensor, start: int, size: int) -> Tensor:
    """Return [size] of the flat tensor from `start` on, from wherever the values are.

    Raises OSError.
    """
    if isinstance(tensor, JoinedTensor):
        return _joined(tensor, start, size)
    if not isinstance(tensor, RemoteTensor):
        return tensor.flatten()[start : start + size]
    if not size:
        return torch.empty(0, dtype=tensor.dtype)
    width = tensor.dtype.itemsize
    content = tensor.file.read(tensor.offset + start * width, size * width)
    return torch.frombuffer(content, dtype=tensor.dtype)


def _joined(tensor: JoinedTensor, start: int, size: int) -> Tensor:
    found = []
    for begin, piece in tensor.pieces:
        first, last = max(start, begin), min(start + size, begin + piece.numel())
        if first < last:
            found.append(part_of(piece, first - begin, last - first))
    if len(found) == 1:
        return found[0]
    return torch.cat(found) if found else torch.empty(0, dtype=tensor.dtype)


def whole_of(tensor: Tensor) -> Tensor:
    """Return the tensor with its values. Raises OSError."""
    if not isinstance(tensor, RemoteTensor | JoinedTensor):
        return tensor
    return part_of(tensor, 0, math.prod(tensor.shape)).view(tensor.shape)
