"""Attention over sequences that lie end to end, without a special kernel.

Only attention must know where a sequence ends; the rest of a model treats each token alone. Here
queries, keys and values are padded during the attention only, so padding costs neither matrix
products nor memory elsewhere. Each sequence has its own row, so tokens of different sequences
never attend to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainer.algorithms.batching import grid
from trainer.types import IntArray

PACKED = "packed_sdpa"
"""Name of `attend` in transformers' registry of attentions."""


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Maps M tokens end to end to B rows of equal width. Without padding both maps are None."""

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
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention for transformers: causal within each sequence of `packed`.

    Without `packed` each row is one sequence, padded on the right. `softcap` bounds the logits
    (Gemma 2), `s_aux` are the logits of each head's sink (gpt-oss). Raises TypeError for a mask or
    a bias of the model's own.
    """
    own_mask = attention_mask is not None and attention_mask.dim() == 4
    if own_mask or position_bias is not None:
        raise TypeError("the model has a mask or a bias of its own")
    states: tuple[Tensor, ...] = (query, key, value)
    if packed is not None:
        states = tuple(packed.side_by_side(part) for part in states)
    width = states[0].shape[2]
    window = None
    if sliding_window is not None and sliding_window < width:
        window = _window(width, sliding_window, query.device)
    output: Tensor
    if softcap is None and s_aux is None:
        output = sdpa_attention_forward(
            module, *states, window, dropout=dropout, scaling=scaling, is_causal=True
        )[0]
    else:
        if window is None:
            window = _window(width, width, query.device)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        logits = states[0] @ _for_each_query(states[1], query).transpose(-2, -1) * scale
        weights = _weights(logits, window, softcap, s_aux).to(query.dtype)
        weights = functional.dropout(weights, dropout, module.training)
        output = (weights @ _for_each_query(states[2], query)).transpose(1, 2)
    return (output if packed is None else packed.end_to_end(output)), None


def _weights(logits: Tensor, seen: Tensor, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """Return [B, heads, width, width] weights from logits; no kernel of torch does both."""
    width = logits.shape[-1]
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
    if sinks is not None:
        sink = sinks.reshape(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, sink.to(logits.dtype)], dim=-1)
    weights = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return weights[..., :width]


def _for_each_query(states: Tensor, query: Tensor) -> Tensor:
    """Repeat the heads of keys or values, so that each head of queries has its own."""
    return states.repeat_interleave(query.shape[1] // states.shape[1], dim=1)


def _window(width: int, size: int, device: torch.device) -> Tensor:
    """Return [1, 1, width, width] true if a token attends: to itself and size − 1 tokens before."""
    at = torch.arange(width, device=device)
    distance = at[:, None] - at
    return ((distance >= 0) & (distance < size))[None, None]


AttentionInterface.register(PACKED, attend)
