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
from trainer.rollout.hf_engine.batch import DecodingBatch, Piece, prefill
from trainer.rollout.hf_engine.sampling import draw, uniforms
from trainer.types import BoolArray, FloatArray, IntArray

IDLE_SHARE = 1 / 8
"""Regroup if this fraction of the slots is idle: below it the copy costs more than it saves."""


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The sampled tokens of R rows; only the first `lengths` entries of a row are valid."""

    tokens: IntArray
    """[R, max_new_tokens]"""
    log_probs: FloatArray
    """[R, max_new_tokens]"""
    lengths: IntArray
    """[R]"""
    finished: BoolArray
    """[R] true if a stop token ended the row."""

    @classmethod
    def empty(cls, rows: int, longest: int) -> DecodedRows:
        return cls(
            np.zeros((rows, longest), dtype=np.int64),
            np.zeros((rows, longest), dtype=np.float32),
            np.zeros(rows, dtype=np.int64),
            np.zeros(rows, dtype=np.bool_),
        )

    def with_rows(self, other: DecodedRows) -> DecodedRows:
        """Return these rows and then the rows of `other`."""
        return DecodedRows(
            np.concatenate([self.tokens, other.tokens]),
            np.concatenate([self.log_probs, other.log_probs]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.finished, other.finished]),
        )

    def row(self, row: int) -> tuple[IntArray, FloatArray, bool]:
        """Return a row's tokens and log-probabilities, and whether a stop token ended it."""
        length = self.lengths[row]
        tokens, log_probs = self.tokens[row, :length], self.log_probs[row, :length]
        return tokens, log_probs, bool(self.finished[row])

    def going(self, rows: IntArray) -> BoolArray:
        """Return which of `rows` are unfinished."""
        going: BoolArray = ~self.finished[rows] & (self.lengths[rows] < self.tokens.shape[1])
        return going

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
class Decoder:
    """A model, and its limits: at most `slots` rows at a time."""

    model: Any
    stops: Sequence[int]
    slots: int
    device: torch.device

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: SamplingSettings,
    ) -> DecodedRows:
        """Return one row for each seed of each prompt, in order."""
        decoding = Decoding(self, sampling)
        decoding.add(prompts, seeds)
        while decoding.busy:
            decoding.step()
        return decoding.written


class Decoding:
    """The decoding of rows that share their sampling settings."""

    def __init__(self, decoder: Decoder, sampling: SamplingSettings) -> None:
        self.written = DecodedRows.empty(0, sampling.max_new_tokens)
        """Tokens of all rows that were ever added."""
        self._decoder = decoder
        self._sampling = sampling
        self._stops = np.array(decoder.stops)
        self._streams = np.zeros(0, dtype=np.uint64)
        self._waiting: list[Piece] = []
        self._batch: DecodingBatch | None = None

    @property
    def busy(self) -> bool:
        return bool(self._batch or self._waiting)

    def add(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        begun: DecodedRows | None = None,
    ) -> None:
        """Add a row for each seed of each prompt.

        `begun`: tokens that each row has already; its prompt here ends with them.
        """
        counts = [len(of_prompt) for of_prompt in seeds]
        first = len(self._streams)
        pieces = _pieces(prompts, counts, self._decoder.slots, first)
        self._waiting = sorted([*self._waiting, *pieces], key=lambda piece: len(piece.tokens))
        added = np.array([seed for of_prompt in seeds for seed in of_prompt], dtype=np.uint64)
        self._streams = np.concatenate([self._streams, added])
        longest = self._sampling.max_new_tokens
        self.written = self.written.with_rows(begun or DecodedRows.empty(len(added), longest))

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
        added = prefill(decoder.model, admitted, decoder.device) if admitted else None
        if batch and added:
            batch.join(added)
        joined = batch or added
        assert joined is not None  # every piece fits into an empty batch
        return joined

    def _draw(self, batch: DecodingBatch) -> Tensor:
        """Sample a token for every row [B], and store the tokens of unfinished rows."""
        numbers = uniforms(self._streams[batch.rows], self.written.lengths[batch.rows])
        on_device = torch.from_numpy(numbers).to(self._decoder.device)
        tokens, log_probs = draw(batch.logits, on_device, self._sampling)
        going = self.written.going(batch.rows)
        self.written.note(
            batch.rows[going],
            tokens.cpu().numpy()[going],
            log_probs.cpu().numpy()[going],
            self._stops,
        )
        return tokens


def _pieces(
    prompts: Sequence[Sequence[int]], counts: Sequence[int], slots: int, first: int
) -> list[Piece]:
    """Return the prompts with their rows from `first` on, at most `slots` rows a piece."""
    ends = first + np.cumsum(counts)
    return [
        Piece(prompt, np.arange(start, min(start + slots, end)))
        for prompt, count, end in zip(prompts, counts, ends, strict=True)
        for start in range(end - count, end, slots)
    ]
