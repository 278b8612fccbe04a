"""A batch of rows in decoding: their cache, and the logits of their next tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from env.images.types import PlacedImage
from trainer.models.vision import Placed, Vision, positions
from trainer.rollout.hf_engine.cache import RowsCache
from trainer.types import IntArray


@dataclass(frozen=True, slots=True)
class Piece:
    """A prompt, and the rows of the result that its completions fill."""

    tokens: Sequence[int]
    rows: IntArray
    images: Placed = ()
    """The images in the tokens."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """How far each row of a batch is."""

    tokens: Tensor
    """[B] number of tokens of each row in the cache."""
    next: Tensor
    """[B] position of each row's next token. An image's tokens share positions."""

    def advanced(self) -> Lengths:
        return Lengths(self.tokens + 1, self.next + 1)

    def rows(self, index: Tensor) -> Lengths:
        return Lengths(self.tokens[index], self.next[index])

    def joined(self, other: Lengths) -> Lengths:
        return Lengths(torch.cat([self.tokens, other.tokens]), torch.cat([self.next, other.next]))


class DecodingBatch:
    """Rows of one model, aligned on the right in one cache."""

    def __init__(
        self, model: Any, cache: RowsCache, lengths: Lengths, rows: IntArray, logits: Tensor
    ) -> None:
        self.rows = rows
        """[B]"""
        self.logits = logits
        """[B, V]"""
        self._model = model
        self._cache = cache
        self._lengths = lengths

    def advance(self, tokens: Tensor) -> None:
        """Append one token to each row, from `tokens` [B]."""
        inputs = {"input_ids": tokens[:, None], "position_ids": self._lengths.next[:, None]}
        self._lengths = self._lengths.advanced()
        width = self._cache.get_seq_length() + 1
        mask = _mask(self._lengths.tokens, width)
        self.logits = _forward(self._model, inputs, mask, self._cache)

    def keep(self, index: Tensor) -> None:
        """Keep only the rows of `index`, and shrink the cache to their width."""
        self.rows = self.rows[index.cpu().numpy()]
        self.logits = self.logits[index]
        self._lengths = self._lengths.rows(index)
        self._cache.keep(index, int(self._lengths.tokens.max()))

    def join(self, other: DecodingBatch) -> None:
        """Append the rows of `other`."""
        self._cache.join(other._cache)
        self.rows = np.concatenate([self.rows, other.rows])
        self.logits = torch.cat([self.logits, other.logits])
        self._lengths = self._lengths.joined(other._lengths)


def prefill(
    model: Any, pieces: Sequence[Piece], device: torch.device, vision: Vision | None = None
) -> DecodingBatch:
    """Return a batch of all rows of `pieces`; each prompt passes through the model once."""
    width = max(len(piece.tokens) for piece in pieces)
    padded = np.zeros((len(pieces), width), dtype=np.int64)
    for row, piece in enumerate(pieces):
        padded[row, width - len(piece.tokens) :] = piece.tokens
    lengths = torch.tensor([len(piece.tokens) for piece in pieces], device=device)
    tokens = torch.from_numpy(padded).to(device)
    if vision is None:
        after = lengths
        places = (torch.arange(width, device=device) - (width - lengths)[:, None]).clamp(min=0)
        inputs = {"input_ids": tokens, "position_ids": places}
    else:
        inputs, after = _seen(vision, tokens, pieces)
    cache = RowsCache()
    logits = _forward(model, inputs, _mask(lengths, width), cache)
    repeats = torch.tensor([len(piece.rows) for piece in pieces], device=device)
    index = torch.arange(len(pieces), device=device).repeat_interleave(repeats)
    cache.keep(index, width)
    rows = np.concatenate([piece.rows for piece in pieces])
    found = Lengths(lengths, after).rows(index)
    return DecodingBatch(model, cache, found, rows, logits[index])


def _seen(
    vision: Vision, tokens: Tensor, pieces: Sequence[Piece]
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs of prompts with images [B, T], and [B] the position after each prompt."""
    width = tokens.shape[1]
    places = np.zeros((3, *tokens.shape), dtype=np.int64)
    images, after = [], []
    for row, piece in enumerate(pieces):
        length = len(piece.tokens)
        places[:, row, width - length :], position = positions(length, piece.images, vision.unit)
        after.append(position)
        images.append([PlacedImage(width - length + p.start, p.image) for p in piece.images])
    inputs = {
        "inputs_embeds": vision.embeddings(tokens, images),
        "position_ids": torch.from_numpy(places).to(tokens.device),
    }
    return inputs, torch.tensor(after, device=tokens.device)


def _mask(lengths: Tensor, width: int) -> Tensor | None:
    """Return [B, width] true if a row has a token; None if all rows are full, which is faster."""
    if int(lengths.min()) == width:
        return None
    return torch.arange(width, device=lengths.device) >= (width - lengths)[:, None]


def _forward(
    model: Any, inputs: dict[str, Tensor], mask: Tensor | None, cache: RowsCache
) -> Tensor:
    """Return logits [B, V] after the last token of `inputs`."""
    # Models that use only distances between tokens (ALiBi) take no positions.
    if "position_ids" not in inspect.signature(model.forward).parameters:
        inputs = {name: value for name, value in inputs.items() if name != "position_ids"}
    logits: Tensor = model(
        **inputs, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1
    ).logits[:, -1]
    return logits
