"""Drafts under way in vLLM's engine, which is stepped from here."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from trainer.rollout.tokenizer_io import Row, Texts
from trainer.types import Draft, Ended, Key


@dataclass(slots=True)
class _UnderWay:
    draft: Draft
    """As it came."""
    version: int
    """Of what is written from here on."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    def as_it_stands(self) -> Draft:
        before = self.draft
        return replace(
            before,
            tokens=np.concatenate([before.tokens, np.array(self.tokens, dtype=np.int64)]),
            log_probs=np.concatenate(
                [before.log_probs, np.array(self.log_probs, dtype=np.float32)]
            ),
            versions=np.concatenate([before.versions, np.full(len(self.tokens), self.version)]),
        )


class Drafts:
    def __init__(self, engine: Any, texts: Texts) -> None:
        """`engine`: vLLM's LLMEngine."""
        self._engine = engine
        self._texts = texts
        self._numbers = count()
        self._under_way: dict[str, _UnderWay] = {}
        """By vLLM's name for the request."""

    @property
    def left(self) -> frozenset[Key]:
        return frozenset(one.draft.key for one in self._under_way.values())

    def add(self, draft: Draft, params: Any, version: int) -> None:
        """`params`: vLLM's, for the rest of the draft."""
        from vllm.sampling_params import RequestOutputKind

        params.output_kind = RequestOutputKind.DELTA
        name = f"draft-{next(self._numbers)}"
        tokens = [*self._texts.prompt(draft.text), *draft.tokens.tolist()]
        self._engine.add_request(name, {"prompt_token_ids": tokens}, params)
        self._under_way[name] = _UnderWay(draft, version)

    def go_on(self, seconds: float) -> list[Ended]:
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

    def as_they_stand(self) -> list[Draft]:
        return [one.as_it_stands() for one in self._under_way.values()]

    def withdraw(self) -> list[Draft]:
        """All of them, out of the engine."""
        drafts = self.as_they_stand()
        self._engine.abort_request(list(self._under_way))
        self._under_way.clear()
        return drafts

    def _ended(self, one: _UnderWay, by_stop: bool) -> Ended:
        draft = one.as_it_stands()
        row = Row(draft.tokens, draft.log_probs, by_stop, draft.versions)
        (completion,) = self._texts.completions([self._texts.prompt(draft.text)], [row])
        return Ended(draft.key, completion)
