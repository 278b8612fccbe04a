"""Drafts under way in a transformers engine, with one version of its weights."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from trainer.rollout.hf_engine.decode import Decoder, Decoding, Written
from trainer.rollout.tokenizer_io import Row, Texts
from trainer.types import Draft, Ended, IntArray, Key, Sampling


class Drafts:
    """Written on from their prompts and what they have: all new tokens are of `version`."""

    def __init__(self, decoder: Decoder, texts: Texts, sampling: Sampling, version: int) -> None:
        self._decoder = decoder
        self._texts = texts
        self._sampling = sampling
        self._version = version
        self._decoding = Decoding(decoder, sampling)
        self._rows: dict[int, tuple[Draft, list[int]]] = {}
        """Row → the draft as it came, and its prompt's tokens; of those under way."""

    @property
    def left(self) -> frozenset[Key]:
        return frozenset(draft.key for draft, _ in self._rows.values())

    def add(self, drafts: Sequence[Draft]) -> None:
        row = len(self._decoding.written.lengths)
        prompts, seeds = [], []
        for together in _sharing_a_prompt(drafts):
            prompt = self._texts.prompt(together[0].text)
            self._rows |= {row + n: (draft, prompt) for n, draft in enumerate(together)}
            row += len(together)
            prompts.append([*prompt, *together[0].tokens.tolist()])
            seeds.append([draft.seed for draft in together])
        self._decoding.add(prompts, seeds, _begun(drafts, self._sampling.max_new_tokens))

    def with_weights_of(self, version: int) -> Drafts:
        """The same drafts: keys and values of the old weights are forgotten."""
        renewed = Drafts(self._decoder, self._texts, self._sampling, version)
        renewed.add(self.drafts())
        return renewed

    def go_on(self, seconds: float) -> list[Ended]:
        """Those that have ended when so many seconds are over, or when none is left."""
        deadline = time.monotonic() + seconds
        while self._decoding.busy:
            self._decoding.step()
            if time.monotonic() >= deadline:
                break
        return self._ended()

    def drafts(self) -> list[Draft]:
        """Those under way, as they stand."""
        return [self._draft(row) for row in self._rows]

    def _ended(self) -> list[Ended]:
        under_way = np.array(list(self._rows), dtype=np.int64)
        over = [int(row) for row in under_way[~self._decoding.written.going(under_way)]]
        if not over:
            return []
        finished = self._decoding.written.finished[over]
        drafts = [self._draft(row) for row in over]
        prompts = [self._rows.pop(row)[1] for row in over]
        rows = [
            Row(draft.tokens, draft.log_probs, bool(by_stop), draft.versions)
            for draft, by_stop in zip(drafts, finished, strict=True)
        ]
        completions = self._texts.completions(prompts, rows)
        return [Ended(d.key, c) for d, c in zip(drafts, completions, strict=True)]

    def _draft(self, row: int) -> Draft:
        before, _ = self._rows[row]
        tokens, log_probs, _ = self._decoding.written.row(row)
        versions = _extended(before.versions, len(tokens), self._version)
        return Draft(before.key, before.text, before.seed, tokens, log_probs, versions)


def _extended(versions: IntArray, length: int, version: int) -> IntArray:
    return np.concatenate([versions, np.full(length - len(versions), version)])


def _sharing_a_prompt(drafts: Sequence[Draft]) -> Iterator[list[Draft]]:
    """Neighbours that begin with the same prompt; one that has tokens already is alone."""

    def begins(draft: Draft) -> tuple[int, int]:
        return draft.key[0], draft.key[1] if len(draft.tokens) else -1

    for _, together in groupby(drafts, begins):
        yield list(together)


def _begun(drafts: Sequence[Draft], longest: int) -> Written:
    written = Written.nothing(len(drafts), longest)
    for row, draft in enumerate(drafts):
        length = len(draft.tokens)
        written.tokens[row, :length] = draft.tokens
        written.log_probs[row, :length] = draft.log_probs
        written.lengths[row] = length
    return written
