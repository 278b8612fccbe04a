"""Attention over sequences that lie end to end, where there is no kernel made for it.

Everything else in a model treats tokens one by one; only attention must know where a sequence
ends. Here queries, keys and values are laid side by side for the time of the attention alone, so
padding costs neither matrix products nor memory outside of it. Two tokens of different sequences
never meet: the block-diagonal mask is the layout itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainer.algorithms.batching import grid
from trainer.types import IntArray

PACKED = "packed_sdpa"
"""The name under which transformers' models find `attend`."""


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """How M tokens end to end become B rows of equal width; both None where they already are."""

    rows: int
    width: int
    tokens: Tensor | None
    """[B * width] the token of each place.

    The places after the end of a row repeat token 0. No real token attends to what follows it, so
    no gradient comes back from them."""
    places: Tensor | None
    """[M] the place of each token."""

    @classmethod
    def of(cls, lengths: IntArray, device: torch.device) -> PackedLayout:
        rows, width = len(lengths), int(lengths.max())
        if lengths.min() == width:
            return cls(rows, width, None, None)
        tokens, places = grid(lengths)
        return cls(
            rows, width, torch.from_numpy(tokens).to(device), torch.from_numpy(places).to(device)
        )

    def side_by_side(self, states: Tensor) -> Tensor:
        """[1, heads, M, size] → [B, heads, width, size]"""
        flat = states.squeeze(0).transpose(0, 1)
        if self.tokens is not None:
            flat = flat.index_select(0, self.tokens)
        return flat.reshape(self.rows, self.width, *flat.shape[1:]).transpose(1, 2)

    def end_to_end(self, states: Tensor) -> Tensor:
        """[B, width, heads, size] → [1, M, heads, size]"""
        flat = states.reshape(self.rows * self.width, *states.shape[2:])
        if self.places is not None:
            flat = flat.index_select(0, self.places)
        return flat.unsqueeze(0)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: PackedLayout | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: causal within each sequence of `packed`.

    Without it the sequences are side by side already, padded on the right if at all.
    """
    states: tuple[Tensor, ...] = (query, key, value)
    if packed is not None:
        states = tuple(packed.side_by_side(part) for part in states)
    width = states[0].shape[2]
    window = None
    if sliding_window is not None and sliding_window < width:
        window = _window(width, sliding_window, query.device)
    output: Tensor = sdpa_attention_forward(
        module, *states, window, dropout=dropout, scaling=scaling, is_causal=True
    )[0]
    return (output if packed is None else packed.end_to_end(output)), None


def _window(width: int, size: int, device: torch.device) -> Tensor:
    """[1, 1, width, width] true where a token sees another: itself and the size − 1 before it."""
    at = torch.arange(width, device=device)
    distance = at[:, None] - at
    return ((distance >= 0) & (distance < size))[None, None]


AttentionInterface.register(PACKED, attend)
