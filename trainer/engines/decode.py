"""The decoding loop: a batch of completions that others join as some of them end.

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
from numpy.typing import NDArray
from torch import Tensor

from trainer.engines.batch import Batch, Piece, prefill
from trainer.engines.sampling import draw
from trainer.engines.streams import uniforms
from trainer.engines.text import Row
from trainer.types import BoolArray, FloatArray, IntArray, Sampling

IDLE_SHARE = 1 / 8
"""Regroup once this share of the places is idle: fewer are not worth the copying."""


@dataclass(frozen=True, slots=True)
class Written:
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
    def nothing(cls, rows: int, longest: int) -> Written:
        return cls(
            np.zeros((rows, longest), dtype=np.int64),
            np.zeros((rows, longest), dtype=np.float32),
            np.zeros(rows, dtype=np.int64),
            np.zeros(rows, dtype=np.bool_),
        )

    def row(self, row: int) -> Row:
        length = self.lengths[row]
        tokens, log_probs = self.tokens[row, :length], self.log_probs[row, :length]
        return Row(tokens, log_probs, bool(self.finished[row]))

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


class Decoder:
    """Decodes with one model, at most `slots` rows at a time."""

    def __init__(self, model: Any, stops: Sequence[int], slots: int, device: torch.device) -> None:
        self._model = model
        self._stops = np.array(stops)
        self._slots = slots
        self._device = device

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
    ) -> Written:
        """One row for each seed of each prompt, in order."""
        streams = np.array([seed for of_prompt in seeds for seed in of_prompt], dtype=np.uint64)
        waiting = _pieces(prompts, [len(of_prompt) for of_prompt in seeds], self._slots)
        written = Written.nothing(len(streams), sampling.max_new_tokens)
        batch: Batch | None = None
        while batch or waiting:
            batch = self._admit(batch, waiting)
            tokens = self._draw(batch, streams, written, sampling)
            going = written.going(batch.rows)
            if not going.any():
                batch = None
                continue
            if len(going) - going.sum() >= IDLE_SHARE * len(going):
                index = torch.from_numpy(np.flatnonzero(going)).to(self._device)
                batch.keep(index)
                tokens = tokens[index]
            batch.advance(tokens)
        return written

    def _admit(self, batch: Batch | None, waiting: list[Piece]) -> Batch:
        """The batch, joined by as many of the waiting prompts as there is room for."""
        room = self._slots - (len(batch.rows) if batch else 0)
        admitted: list[Piece] = []
        if batch is None or room >= IDLE_SHARE * self._slots:
            while waiting and len(waiting[-1].rows) <= room:
                admitted.append(waiting.pop())
                room -= len(admitted[-1].rows)
        added = prefill(self._model, admitted, self._device) if admitted else None
        if batch and added:
            batch.join(added)
        joined = batch or added
        assert joined is not None  # a piece fits into an empty batch
        return joined

    def _draw(
        self, batch: Batch, streams: NDArray[np.uint64], written: Written, sampling: Sampling
    ) -> Tensor:
        """A token for every row [B], noted for those that have not ended."""
        numbers = uniforms(streams[batch.rows], written.lengths[batch.rows])
        on_device = torch.from_numpy(numbers).to(self._device)
        tokens, log_probs = draw(batch.logits, on_device, sampling)
        going = written.going(batch.rows)
        written.note(
            batch.rows[going],
            tokens.cpu().numpy()[going],
            log_probs.cpu().numpy()[going],
            self._stops,
        )
        return tokens


def _pieces(prompts: Sequence[Sequence[int]], counts: Sequence[int], slots: int) -> list[Piece]:
    """Prompts with their rows, the longest last; a piece has no more rows than there are slots."""
    ends = np.cumsum(counts)
    pieces = [
        Piece(prompt, np.arange(start, min(start + slots, end)))
        for prompt, count, end in zip(prompts, counts, ends, strict=True)
        for start in range(end - count, end, slots)
    ]
    return sorted(pieces, key=lambda piece: len(piece.tokens))
