"""The decoding loop: a batch of completions, in which waiting prompts replace finished rows.

A prompt with several completions passes through the model once. The content of a row depends only
on its prompt and its seed, up to the rounding of batched sums: see `sampling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config.options.rollout import SamplingSettings
from trainer.models.vision import Placed, Vision
from trainer.rollout.hf_engine.batch import DecodingBatch, Piece, prefill
from trainer.rollout.hf_engine.sampling import draw, uniforms
from trainer.types import BoolArray, FloatArray, IntArray, Seed, TokenArray

IDLE_SHARE = 1 / 8
"""Regroup if this fraction of the slots is idle: below it the copy costs more than it saves."""


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The sampled tokens of R rows; only the first `lengths` entries of a row are valid."""

    tokens: TokenArray
    """[R, max_new_tokens]"""
    log_probs: FloatArray
    """[R, max_new_tokens]"""
    lengths: IntArray
    """[R]"""
    finished: BoolArray
    """[R] true if a stop token or a stop string ended the row."""
    limits: IntArray
    """[R] the longest length of each row, at most max_new_tokens."""

    @classmethod
    def empty(cls, limits: Sequence[int], longest: int) -> DecodedRows:
        rows = len(limits)
        return cls(
            np.zeros((rows, longest), dtype=np.int32),
            np.zeros((rows, longest), dtype=np.float32),
            np.zeros(rows, dtype=np.int64),
            np.zeros(rows, dtype=np.bool_),
            np.array(limits, dtype=np.int64),
        )

    def with_rows(self, other: DecodedRows) -> DecodedRows:
        """Return these rows and then the rows of `other`."""
        return DecodedRows(
            np.concatenate([self.tokens, other.tokens]),
            np.concatenate([self.log_probs, other.log_probs]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.finished, other.finished]),
            np.concatenate([self.limits, other.limits]),
        )

    def row(self, row: int) -> tuple[TokenArray, FloatArray, bool]:
        """Return a row's tokens and log-probabilities, and whether a stop token ended it."""
        length = self.lengths[row]
        tokens, log_probs = self.tokens[row, :length], self.log_probs[row, :length]
        return tokens, log_probs, bool(self.finished[row])

    def going(self, rows: IntArray) -> BoolArray:
        """Return which of `rows` are unfinished."""
        going: BoolArray = ~self.finished[rows] & (self.lengths[rows] < self.limits[rows])
        return going

    def cut(self, row: int, length: int) -> None:
        """End a row after its first `length` tokens."""
        self.lengths[row] = length
        self.finished[row] = True

    def note(
        self, rows: IntArray, tokens: IntArray, log_probs: FloatArray, stops: IntArray
    ) -> None:
        """Append one token to each of `rows`."""
        at = self.lengths[rows]
        self.tokens[rows, at] = tokens
        self.log_probs[rows, at] = log_probs
        self.lengths[rows] += 1
        self.finished[rows] = np.isin(tokens, stops)


@dataclass(frozen=True, slots=True)
class Prompted:
    """The tokens that rows continue, with the images in them."""

    tokens: Sequence[int]
    images: Placed = ()


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model, and its limits: at most `slots` rows at a time."""

    model: Any
    stops: Sequence[int]
    slots: int
    device: torch.device
    vision: Vision | None = None
    """What sees images; None for a model of text."""

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Prompted],
        seeds: Sequence[Sequence[Seed]],
        sampling: SamplingSettings,
        limits: Sequence[int],
    ) -> DecodedRows:
        """Return one row for each seed of each prompt, in order. `limits`: of each row's length."""
        decoding = Decoding(self, sampling)
        decoding.add(prompts, seeds, DecodedRows.empty(limits, sampling.max_new_tokens))
        while decoding.busy:
            decoding.step()
        return decoding.written


class Decoding:
    """The decoding of rows that share their sampling settings."""

    def __init__(self, decoder: Decoder, sampling: SamplingSettings) -> None:
        self.written = DecodedRows.empty((), sampling.max_new_tokens)
        """Tokens of all rows that were ever added."""
        self._decoder = decoder
        self._sampling = sampling
        self._stops = np.array(decoder.stops)
        self._streams = np.zeros(0, dtype=np.uint64)
        self._greedy = np.zeros(0, dtype=np.bool_)
        self._waiting: list[Piece] = []
        self._batch: DecodingBatch | None = None

    @property
    def busy(self) -> bool:
        return bool(self._batch or self._waiting)

    def add(
        self,
        prompts: Sequence[Prompted],
        seeds: Sequence[Sequence[Seed]],
        begun: DecodedRows,
    ) -> None:
        """Add a row for each seed of each prompt.

        `begun`: the rows with the tokens that they have already; a prompt here ends with them.
        """
        counts = [len(of_prompt) for of_prompt in seeds]
        first = len(self._streams)
        pieces = _pieces(prompts, counts, self._decoder.slots, first)
        self._waiting = sorted([*self._waiting, *pieces], key=lambda piece: len(piece.tokens))
        added = [seed for of_prompt in seeds for seed in of_prompt]
        streams = np.array([seed or 0 for seed in added], dtype=np.uint64)
        greedy = np.array([seed is None for seed in added], dtype=np.bool_)
        self._streams = np.concatenate([self._streams, streams])
        self._greedy = np.concatenate([self._greedy, greedy])
        self.written = self.written.with_rows(begun)

    @torch.inference_mode()
    def step(self) -> None:
        """Decode one token for each row in the batch."""
        batch = self._batch = self._admit()
        tokens = self._draw(batch)
        going = self.written.going(batch.rows)
        if not going.any():
            self._batch = None
            return
        if len(going) - going.sum() >= IDLE_SHARE * len(going):
            index = torch.from_numpy(np.flatnonzero(going)).to(self._decoder.device)
            batch.keep(index)
            tokens = tokens[index]
        batch.advance(tokens)

    def _admit(self) -> DecodingBatch:
        """Return the batch, with as many waiting prompts as it has room for."""
        batch, slots = self._batch, self._decoder.slots
        room = slots - (len(batch.rows) if batch else 0)
        admitted: list[Piece] = []
        if batch is None or room >= IDLE_SHARE * slots:
            while self._waiting and len(self._waiting[-1].rows) <= room:
                admitted.append(self._waiting.pop())
                room -= len(admitted[-1].rows)
        decoder = self._decoder
        added = None
        if admitted:
            added = prefill(decoder.model, admitted, decoder.device, decoder.vision)
        if batch and added:
            batch.join(added)
        joined = batch or added
        assert joined is not None  # every piece fits into an empty batch
        return joined

    def _draw(self, batch: DecodingBatch) -> Tensor:
        """Sample a token for every row [B], and store the tokens of unfinished rows."""
        numbers = uniforms(self._streams[batch.rows], self.written.lengths[batch.rows])
        on_device = torch.from_numpy(numbers).to(self._decoder.device)
        greedy = self._greedy[batch.rows]
        likeliest = torch.from_numpy(greedy).to(self._decoder.device) if greedy.any() else None
        tokens, log_probs = draw(batch.logits, on_device, self._sampling, likeliest)
        going = self.written.going(batch.rows)
        self.written.note(
            batch.rows[going],
            tokens.cpu().numpy()[going],
            log_probs.cpu().numpy()[going],
            self._stops,
        )
        return tokens


def _pieces(
    prompts: Sequence[Prompted], counts: Sequence[int], slots: int, first: int
) -> list[Piece]:
    """Return the prompts with their rows from `first` on, at most `slots` rows a piece."""
    ends = first + np.cumsum(counts)
    return [
        Piece(prompt.tokens, np.arange(start, min(start + slots, end)), prompt.images)
        for prompt, count, end in zip(prompts, counts, ends, strict=True)
        for start in range(end - count, end, slots)
    ]
