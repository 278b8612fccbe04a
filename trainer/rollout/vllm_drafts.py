"""Partial rollouts under way in vLLM's engine, which is stepped from here."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from trainer.rollout.tokenizer_io import Texts, TokenRow
from trainer.types import FinishedRollout, Key, PartialRollout


@dataclass(slots=True)
class _UnderWay:
    partial: PartialRollout
    """As it came."""
    version: int
    """Of what is written from here on."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    def as_it_stands(self) -> PartialRollout:
        before = self.partial
        return replace(
            before,
            tokens=np.concatenate([before.tokens, np.array(self.tokens, dtype=np.int64)]),
            log_probs=np.concatenate(
                [before.log_probs, np.array(self.log_probs, dtype=np.float32)]
            ),
            versions=np.concatenate([before.versions, np.full(len(self.tokens), self.version)]),
        )


class PartialRollouts:
    def __init__(self, engine: Any, texts: Texts) -> None:
        """`engine`: vLLM's LLMEngine."""
        self._engine = engine
        self._texts = texts
        self._numbers = count()
        self._under_way: dict[str, _UnderWay] = {}
        """By vLLM's name for the request."""

    @property
    def left(self) -> frozenset[Key]:
        return frozenset(one.partial.key for one in self._under_way.values())

    def add(self, partial: PartialRollout, params: Any, version: int) -> None:
        """`params`: vLLM's, for the rest of the partial rollout."""
        from vllm.sampling_params import RequestOutputKind

        params.output_kind = RequestOutputKind.DELTA
        name = f"rollout-{next(self._numbers)}"
        tokens = [*self._texts.prompt(partial.text), *partial.tokens.tolist()]
        self._engine.add_request(name, {"prompt_token_ids": tokens}, params)
        self._under_way[name] = _UnderWay(partial, version)

    def go_on(self, seconds: float) -> list[FinishedRollout]:
        """Those that have ended when so many seconds are over, or when none is left."""
        deadline = time.monotonic() + seconds
        ended = []
        while self._under_way:
            for output in self._engine.step():
                (written,) = output.outputs
                one = self._under_way[output.request_id]
                one.tokens += written.token_ids
                one.log_probs += written.logprobs.logprobs
                if output.finished:
                    del self._under_way[output.request_id]
                    ended.append(self._ended(one, written.finish_reason == "stop"))
            if time.monotonic() >= deadline:
                break
        return ended

    def as_they_stand(self) -> list[PartialRollout]:
        return [one.as_it_stands() for one in self._under_way.values()]

    def withdraw(self) -> list[PartialRollout]:
        """All of them, out of the engine."""
        partials = self.as_they_stand()
        self._engine.abort_request(list(self._under_way))
        self._under_way.clear()
        return partials

    def _ended(self, one: _UnderWay, by_stop: bool) -> FinishedRollout:
        partial = one.as_it_stands()
        row = TokenRow(partial.tokens, partial.log_probs, by_stop, partial.versions)
        (completion,) = self._texts.completions([self._texts.prompt(partial.text)], [row])
        return FinishedRollout(partial.key, completion)
