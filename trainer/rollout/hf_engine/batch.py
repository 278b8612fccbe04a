"""A batch of rows in decoding: their cache, and the logits of their next tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.rollout.hf_engine.cache import RowsCache
from trainer.types import IntArray


@dataclass(frozen=True, slots=True)
class Piece:
    """A prompt, and the rows of the result that its completions fill."""

    tokens: Sequence[int]
    rows: IntArray


class DecodingBatch:
    """Rows of one model, aligned on the right in one cache."""

    def __init__(
        self, model: Any, cache: RowsCache, lengths: Tensor, rows: IntArray, logits: Tensor
    ) -> None:
        self.rows = rows
        """[B]"""
        self.logits = logits
        """[B, V]"""
        self._model = model
        self._cache = cache
        self._lengths = lengths
        """[B] number of tokens of each row in the cache."""

    def advance(self, tokens: Tensor) -> None:
        """Append one token to each row, from `tokens` [B]."""
        positions = self._lengths[:, None]
        self._lengths = self._lengths + 1
        width = self._cache.get_seq_length() + 1
        mask = _mask(self._lengths, width)
        self.logits = _forward(self._model, tokens[:, None], mask, positions, self._cache)

    def keep(self, index: Tensor) -> None:
        """Keep only the rows of `index`, and shrink the cache to their width."""
        self.rows = self.rows[index.cpu().numpy()]
        self.logits = self.logits[index]
        self._lengths = self._lengths[index]
        self._cache.keep(index, int(self._lengths.max()))

    def join(self, other: DecodingBatch) -> None:
        """Append the rows of `other`."""
        self._cache.join(other._cache)
        self.rows = np.concatenate([self.rows, other.rows])
        self.logits = torch.cat([self.logits, other.logits])
        self._lengths = torch.cat([self._lengths, other._lengths])


def prefill(model: Any, pieces: Sequence[Piece], device: torch.device) -> DecodingBatch:
    """Return a batch of all rows of `pieces`; each prompt passes through the model once."""
    width = max(len(piece.tokens) for piece in pieces)
    padded = np.zeros((len(pieces), width), dtype=np.int64)
    for row, piece in enumerate(pieces):
        padded[row, width - len(piece.tokens) :] = piece.tokens
    lengths = torch.tensor([len(piece.tokens) for piece in pieces], device=device)
    mask = _mask(lengths, width)
    positions = (torch.arange(width, device=device) - (width - lengths)[:, None]).clamp(min=0)
    cache = RowsCache()
    logits = _forward(model, torch.from_numpy(padded).to(device), mask, positions, cache)
    repeats = torch.tensor([len(piece.rows) for piece in pieces], device=device)
    index = torch.arange(len(pieces), device=device).repeat_interleave(repeats)
    cache.keep(index, width)
    rows = np.concatenate([piece.rows for piece in pieces])
    return DecodingBatch(model, cache, lengths[index], rows, logits[index])


def _mask(lengths: Tensor, width: int) -> Tensor | None:
    """Return [B, width] true if a row has a token; None if all rows are full, which is faster."""
    if int(lengths.min()) == width:
        return None
    return torch.arange(width, device=lengths.device) >= (width - lengths)[:, None]


def _forward(
    model: Any, tokens: Tensor, mask: Tensor | None, positions: Tensor, cache: RowsCache
) -> Tensor:
    """Return logits [B, V] after the last of `tokens` [B, T]."""
    inputs = {
        "input_ids": tokens,
        "attention_mask": mask,
        "past_key_values": cache,
        "use_cache": True,
        "logits_to_keep": 1,
    }
    # Models that use only distances between tokens (ALiBi) take no positions.
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = positions
    logits: Tensor = model(**inputs).logits[:, -1]
    return logits
