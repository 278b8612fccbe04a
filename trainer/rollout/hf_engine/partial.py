"""Unfinished rollouts in a transformers engine, decoded with one version of its weights."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.hf_engine.decode import DecodedRows, Decoder, Decoding, Prompted
from trainer.rollout.tokenizer_io import Texts, TokenRow
from trainer.types import FinishedRollout, Key, PartialRollout, VersionArray


class PartialRollouts:
    """Continues rollouts from their prompts and tokens; all new tokens are of `version`."""

    def __init__(
        self, decoder: Decoder, texts: Texts, sampling: SamplingSettings, version: int
    ) -> None:
        self._decoder = decoder
        self._texts = texts
        self._sampling = sampling
        self._version = version
        self._decoding = Decoding(decoder, sampling)
        self._rows: dict[int, tuple[PartialRollout, list[int]]] = {}
        """Unfinished row → the partial rollout as it was added, and its prompt's tokens."""
        self._checked: dict[int, int] = {}
        """Row → its first tokens, in which stop strings were looked for."""

    @property
    def left(self) -> frozenset[Key]:
        return frozenset(partial.key for partial, _ in self._rows.values())

    def add(self, partials: Sequence[PartialRollout]) -> None:
        row = len(self._decoding.written.lengths)
        prompts, seeds = [], []
        for together in _sharing_a_prompt(partials):
            prompt = self._texts.tokens(together[0])
            self._rows |= {row + n: (partial, prompt) for n, partial in enumerate(together)}
            row += len(together)
            whole = [*prompt, *together[0].tokens.tolist()]
            prompts.append(Prompted(whole, self._texts.images(together[0])))
            seeds.append([partial.seed for partial in together])
        self._decoding.add(prompts, seeds, _begun(partials, self._sampling.max_new_tokens))

    def with_weights_of(self, version: int) -> PartialRollouts:
        """Return the same rollouts for new weights, without keys and values of the old weights."""
        renewed = PartialRollouts(self._decoder, self._texts, self._sampling, version)
        renewed.add(self.partials())
        return renewed

    def go_on(self, seconds: float) -> list[FinishedRollout]:
        """Decode for `seconds`, or until no rollout is left. Return the finished rollouts."""
        deadline = time.monotonic() + seconds
        while self._decoding.busy:
            self._decoding.step()
            if time.monotonic() >= deadline:
                break
        self._stop()
        return self._ended()

    def _stop(self) -> None:
        """End the rows that have a stop string."""
        for row, (partial, _) in self._rows.items():
            stops = partial.context.stops if partial.context else ()
            if not stops:
                continue
            tokens, _, _ = self._decoding.written.row(row)
            length = self._texts.stop(tokens, stops, self._checked.get(row, 0))
            if length is not None:
                self._decoding.written.cut(row, length)
            self._checked[row] = len(tokens)

    def partials(self) -> list[PartialRollout]:
        """Return the unfinished rollouts with their tokens so far."""
        return [self._partial(row) for row in self._rows]

    def _ended(self) -> list[FinishedRollout]:
        under_way = np.array(list(self._rows), dtype=np.int64)
        over = [int(row) for row in under_way[~self._decoding.written.going(under_way)]]
        if not over:
            return []
        finished = self._decoding.written.finished[over]
        partials = [self._partial(row) for row in over]
        prompts = [self._rows.pop(row)[1] for row in over]
        rows = [
            TokenRow(partial.tokens, partial.log_probs, bool(by_stop), partial.versions)
            for partial, by_stop in zip(partials, finished, strict=True)
        ]
        completions = self._texts.completions(prompts, rows)
        return [FinishedRollout(d.key, c) for d, c in zip(partials, completions, strict=True)]

    def _partial(self, row: int) -> PartialRollout:
        before, _ = self._rows[row]
        tokens, log_probs, _ = self._decoding.written.row(row)
        versions = _extended(before.versions, len(tokens), self._version)
        return replace(before, tokens=tokens, log_probs=log_probs, versions=versions)


def _extended(versions: VersionArray, length: int, version: int) -> VersionArray:
    added = np.full(length - len(versions), version, dtype=np.int32)
    return np.concatenate([versions, added])


def _sharing_a_prompt(partials: Sequence[PartialRollout]) -> Iterator[list[PartialRollout]]:
    """Group neighbours with the same prompt. A rollout that has tokens already is alone."""

    def begins(partial: PartialRollout) -> tuple[int, Sequence[int], list[int], int]:
        context = partial.context.tokens if partial.context else ()
        images = [id(placed.image) for placed in partial.context.images] if partial.context else []
        return partial.key[0], context, images, partial.key[1] if len(partial.tokens) else -1

    for _, together in groupby(partials, begins):
        yield list(together)


def _begun(partials: Sequence[PartialRollout], longest: int) -> DecodedRows:
    limits = [p.context.limit if p.context else longest for p in partials]
    written = DecodedRows.empty(limits, longest)
    for row, partial in enumerate(partials):
        length = len(partial.tokens)
        written.tokens[row, :length] = partial.tokens
        written.log_probs[row, :length] = partial.log_probs
        written.lengths[row] = length
    return written
