"""Sums over the sequences that flat tensors of tokens consist of."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_mean(values: Tensor, rows: Tensor) -> Tensor:
    """[N] each token's entry is the mean of `values` [N] over its sequence in `rows` [N]."""
    _, index, counts = torch.unique(rows, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), dtype=values.dtype, device=values.device)
    sums = sums.index_add(0, index, values)
    means: Tensor = (sums / counts)[index]
    return means
