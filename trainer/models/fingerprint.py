"""A fingerprint of tensors' bits, which a device computes as fast as it reads its memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
ROW = 4096
"""Words whose sum gets a weight of its own."""
MIXER = 0x9E3779B97F4A7C15
"""Odd: times an odd number, a difference stays one modulo 2^64."""


def fingerprint(tensors: Iterable[Tensor]) -> int:
    """Return 64 bits that differ if one word of one tensor does, wherever the tensors lie."""
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for place, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append((place, _sum(tensor.detach())))
    sums = {
        place: value
        for found in by_device.values()
        for (place, _), value in zip(
            found, torch.stack([total for _, total in found]).tolist(), strict=True
        )
    }
    return combined([sums[place] for place in sorted(sums)])


def combined(sums: Iterable[int]) -> int:
    """Return 64 bits that differ if one of the sums does."""
    total = 0
    for one in sums:
        total = (total * MIXER + one + 1) % 2**64
    return total


def _sum(tensor: Tensor) -> Tensor:
    """Return a scalar in int64 of the tensor's bits: rows of words, each times an odd number."""
    words = _words(tensor)
    whole = words.numel() // ROW * ROW
    rows = words[:whole].view(-1, ROW).sum(1, dtype=torch.int64)
    rows = torch.cat([rows, words[whole:].sum(dtype=torch.int64).view(1)])
    odd = torch.arange(1, 2 * len(rows), 2, device=rows.device)
    return (rows * odd).sum()


def _words(tensor: Tensor) -> Tensor:
    """Return the tensor's memory as the longest integers that it divides into: 64 bits are fast."""
    flat = tensor.reshape(-1)
    size, start = flat.element_size(), flat.storage_offset() * flat.element_size()
    for word in WORDS:
        if not any(number % word.itemsize for number in (size * len(flat), start)):
            break
    return flat.view(word)
