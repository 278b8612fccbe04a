"""Samples whose tokens several ranks share.

DeepSpeed-Ulysses (Jacobs et al. 2023, section 3.1): each rank runs the model on its slice of the
tokens. Inside attention the ranks exchange tokens for heads: each has all tokens of its part of the
heads, computes attention as if it were alone, and gets its own tokens back.

Each rank computes the loss from the scores of all actions. Its gradient is that of its own scores
alone, so the ranks' gradients add up to the gradient of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from trainer.types import IntArray, Rank


@dataclass(frozen=True, slots=True)
class SharingRanks:
    """The ranks that share the samples of a micro-batch, this process among them."""

    place: int
    size: int
    group: ProcessGroup

    def by_heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return [B, heads / size, T, width] of all tokens, from [B, heads, t, width] of own ones.

        If a rank cannot have whole heads of keys and values, they are copied as often as needed.
        Raises ValueError if the heads of queries cannot be divided.
        """
        if query.shape[1] % self.size:
            raise ValueError(f"{query.shape[1]} heads cannot be divided over {self.size} ranks")
        times = copies(query.shape[1], key.shape[1], self.size)
        key, value = (part.repeat_interleave(times, dim=1) for part in (key, value))
        split = [part.unflatten(1, (self.size, -1)).transpose(0, 1) for part in (query, key, value)]
        sent = torch.cat([part.flatten(1) for part in split], dim=1)
        received = self._exchange(sent).split([part[0].numel() for part in split], dim=1)
        query, key, value = (
            got.view(part.shape).permute(1, 2, 0, 3, 4).flatten(2, 3)
            for got, part in zip(received, split, strict=True)
        )
        return query, key, value

    def by_tokens(self, output: Tensor) -> Tensor:
        """Return [B, t, heads, width] of own tokens, from [B, T, heads / size, width] of all."""
        sent = output.unflatten(1, (self.size, -1)).transpose(0, 1)
        return self._exchange(sent.contiguous()).permute(1, 2, 0, 3, 4).flatten(2, 3)

    def whole(self, scores: Tensor, own: IntArray, count: int) -> Tensor:
        """Return [count, …] the scores of all actions, from [n, …] of `own` ones; -1: none."""
        at = torch.from_numpy(own).to(scores.device)
        whole: Tensor = _Gathered.apply(scores, at, count, self.group)  # type: ignore[no-untyped-call]
        return whole

    def total(self, own: Tensor) -> Tensor:
        """Return the sum of the ranks' tensors."""
        total: Tensor = _Total.apply(own, self.group)  # type: ignore[no-untyped-call]
        return total

    def _exchange(self, parts: Tensor) -> Tensor:
        """Return [size, …] the part that each rank has for this one, from those for each rank."""
        exchanged: Tensor = _Exchange.apply(parts, self.group)  # type: ignore[no-untyped-call]
        return exchanged


@dataclass(frozen=True, slots=True)
class SharedPass:
    """What the layers of a model need to know of a pass over shared samples."""

    ranks: SharingRanks
    inside: Tensor
    """[R, t] whether a token of the slice is one of a sample."""


@cache
def sharing_ranks(rank: Rank) -> SharingRanks | None:
    """Return the ranks that share samples with this one; None if it shares none.

    All ranks of the model call it, since all make all groups.
    """
    if rank.sharing == 1:
        return None
    world: Any = distributed.group.WORLD
    limit = world._get_backend(torch.device("cpu")).options._timeout  # torch's own is 30 minutes
    firsts = range(0, rank.world, rank.sharing)
    groups = [
        distributed.new_group([*range(first, first + rank.sharing)], timeout=limit)
        for first in firsts
    ]
    return SharingRanks(rank.index % rank.sharing, rank.sharing, groups[rank.data.index])


def copies(heads: int, key_heads: int, ranks: int) -> int:
    """Return how often keys and values are copied, so that ranks can divide them."""
    shared = heads // key_heads
    fitting = (n for n in range(1, shared + 1) if not (shared % n or key_heads * n % ranks))
    return next(fitting, shared)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchanged(parts, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _exchanged(gradient, ctx.group), None


def _exchanged(parts: Tensor, group: ProcessGroup) -> Tensor:
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    distributed.all_to_all_single(received, parts, group=group)
    return received


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, own: Tensor, count: int, group: ProcessGroup) -> Tensor:
        ctx.save_for_backward(own)
        # The last place is for what is none of the actions.
        whole = scores.new_zeros(count + 1, *scores.shape[1:])
        whole[own] = scores
        distributed.all_reduce(whole, group=group)
        return whole[:count]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (own,) = ctx.saved_tensors
        none = gradient.new_zeros(1, *gradient.shape[1:])
        return torch.cat([gradient, none])[own], None, None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: ProcessGroup) -> Tensor:
        total = own.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None
