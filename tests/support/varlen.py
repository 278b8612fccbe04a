"""torch's kernel for packed attention, in plain torch: the same arguments, demands and results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from trainer.models import packed_attention

HALVES = (torch.bfloat16, torch.float16)
EXACT = (torch.float64,)


class Kernel:
    """Replaces `varlen_attn`; `calls` are the lengths and the windows that it was asked for."""

    def __init__(self, kinds: Sequence[torch.dtype]) -> None:
        self.kinds = kinds
        self.calls: list[tuple[list[int], tuple[int, int]]] = []

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        return_aux: Any = None,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: Tensor | None = None,
        block_table: Tensor | None = None,
        num_splits: int | None = None,
    ) -> Tensor:
        assert cu_seq_k is not None
        assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
        ends = cu_seq_q.tolist()
        lengths = [end - start for start, end in pairwise(ends)]
        assert ends[0] == 0
        assert ends[-1] == len(query) == len(key) == len(value)
        assert max(lengths) == max_q == max_k
        assert min(lengths) > 0
        assert (query.shape[1] == key.shape[1]) is not enable_gqa
        assert all(each.dim() == 3 and each.stride(-1) == 1 for each in (query, key, value))
        if not {query.dtype, key.dtype, value.dtype} <= set(self.kinds):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        if query.shape[-1] % 8 or query.shape[-1] > 256:
            raise RuntimeError("head_size must be a multiple of 8, up to 256")
        self.calls.append((lengths, window_size))
        parts = (torch.split(each, lengths) for each in (query, key, value))
        return torch.cat(
            [self.one(q, k, v, scale, window_size) for q, k, v in zip(*parts, strict=True)]
        )

    def one(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        window: tuple[int, int],
    ) -> Tensor:
        """Return [T, heads, size] attention of one sequence."""
        exact = torch.promote_types(query.dtype, torch.float32)
        groups = query.shape[1] // key.shape[1]
        keys, values = (each.to(exact).repeat_interleave(groups, 1) for each in (key, value))
        logits = torch.einsum("qhd,khd->hqk", query.to(exact), keys)
        logits = logits * (query.shape[-1] ** -0.5 if scale is None else scale)
        logits = logits.masked_fill(~seen(len(query), window), float("-inf"))
        return torch.einsum("hqk,khd->qhd", logits.softmax(-1), values).to(query.dtype)


class Rounding(Kernel):
    """A kernel that multiplies in half precision, as those on GPUs do."""

    def one(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        window: tuple[int, int],
    ) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        keys, values = (each.repeat_interleave(groups, 1) for each in (key, value))
        logits = torch.einsum("qhd,khd->hqk", query.float(), keys.float())
        logits = logits * (query.shape[-1] ** -0.5 if scale is None else scale)
        weights = logits.masked_fill(~seen(len(query), window), float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights.to(query.dtype), values)


class Causal(Kernel):
    """A kernel that forgets windows."""

    def one(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        window: tuple[int, int],
    ) -> Tensor:
        return super().one(query, key, value, scale, (-1, 0))


def seen(length: int, window: tuple[int, int]) -> Tensor:
    """Return [length, length] whether a token attends to another."""
    before, after = (length if size < 0 else size for size in window)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance <= before) & (-distance <= after)


def replace(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> Kernel:
    """Let the kernel's place be taken until the test ends."""
    packed_attention._works.cache_clear()
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    return kernel
