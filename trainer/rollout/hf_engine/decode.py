"""The decoding loop: a batch of completions that others join, at any time, as some of them end.

Rows that have ended leave, prompts that wait take their places, and a prompt with several
completions passes through the model once. What a row contains depends on its prompt and its seed
alone, up to the rounding of batched sums: see `streams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.rollout.hf_engine.batch import DecodingBatch, Piece, prefill
from trainer.rollout.hf_engine.sampling import draw, uniforms
from trainer.types import BoolArray, FloatArray, IntArray, Sampling

IDLE_SHARE = 1 / 8
"""Regroup once this share of the places is idle: fewer are not worth the copying."""


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """What was drawn for each of R rows; only the first `lengths` entries of a row count."""

    tokens: IntArray
    """[R, max_new_tokens]"""
    log_probs: FloatArray
    """[R, max_new_tokens]"""
    lengths: IntArray
    """[R]"""
    finished: BoolArray
    """[R] ended by a stop token."""

    @classmethod
    def nothing(cls, rows: int, longest: int) -> DecodedRows:
        return cls(
            np.zeros((rows, longest), dtype=np.int64),
            np.zeros((rows, longest), dtype=np.float32),
            np.zeros(rows, dtype=np.int64),
            np.zeros(rows, dtype=np.bool_),
        )

    def and_also(self, other: DecodedRows) -> DecodedRows:
        """With the rows of `other` after these."""
        return DecodedRows(
            np.concatenate([self.tokens, other.tokens]),
            np.concatenate([self.log_probs, other.log_probs]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.finished, other.finished]),
        )

    def row(self, row: int) -> tuple[IntArray, FloatArray, bool]:
        """Its tokens, their log-probabilities, and whether a stop token ended it."""
        length = self.lengths[row]
        tokens, log_probs = self.tokens[row, :length], self.log_probs[row, :length]
        return tokens, log_probs, bool(self.finished[row])

    def going(self, rows: IntArray) -> BoolArray:
        going: BoolArray = ~self.finished[rows] & (self.lengths[rows] < self.tokens.shape[1])
        return going

    def note(
        self, rows: IntArray, tokens: IntArray, log_probs: FloatArray, stops: IntArray
    ) -> None:
        """One more token for each of `rows`."""
        at = self.lengths[rows]
        self.tokens[rows, at] = tokens
        self.log_probs[rows, at] = log_probs
        self.lengths[rows] += 1
        self.finished[rows] = np.isin(tokens, stops)


@dataclass(frozen=True, slots=True)
class Decoder:
    """What rows are decoded with: one model, at most `slots` rows at a time."""

    model: Any
    stops: Sequence[int]
    slots: int
    device: torch.device

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
    ) -> DecodedRows:
        """One row for each seed of each prompt, in order."""
        decoding = Decoding(self, sampling)
        decoding.add(prompts, seeds)
        while decoding.busy:
            decoding.step()
        return decoding.written


class Decoding:
    """Rows under way, of one sampling."""

    def __init__(self, decoder: Decoder, sampling: Sampling) -> None:
        self.written = DecodedRows.nothing(0, sampling.max_new_tokens)
        """Of all rows that were ever added."""
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
        """One more row for each seed of each prompt.

        `begun`: what is written of each row already, with which its prompt here ends.
        """
        counts = [len(of_prompt) for of_prompt in seeds]
        first = len(self._streams)
        pieces = _pieces(prompts, counts, self._decoder.slots, first)
        self._waiting = sorted([*self._waiting, *pieces], key=lambda piece: len(piece.tokens))
        added = np.array([seed for of_prompt in seeds for seed in of_prompt], dtype=np.uint64)
        self._streams = np.concatenate([self._streams, added])
        longest = self._sampling.max_new_tokens
        self.written = self.written.and_also(begun or DecodedRows.nothing(len(added), longest))

    @torch.inference_mode()
    def step(self) -> None:
        """One token more for each row in the batch."""
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
        """The batch, joined by as many of the waiting prompts as there is room for."""
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
        assert joined is not None  # a piece fits into an empty batch
        return joined

    def _draw(self, batch: DecodingBatch) -> Tensor:
        """A token for every row [B], noted for those that have not ended."""
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
    """Prompts with their rows from `first` on; a piece has no more rows than there are slots."""
    ends = first + np.cumsum(counts)
    return [
        Piece(prompt, np.arange(start, min(start + slots, end)))
        for prompt, count, end in zip(prompts, counts, ends, strict=True)
        for start in range(end - count, end, slots)
    ]
