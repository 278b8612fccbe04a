"""Unfinished rollouts in vLLM's engine, which this module steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from trainer.rollout import vllm_images
from trainer.rollout.tokenizer_io import Texts, TokenRow
from trainer.types import FinishedRollout, Key, PartialRollout


@dataclass(slots=True)
class _UnderWay:
    partial: PartialRollout
    """The rollout as it was added."""
    version: int
    """Version of the policy that generates the new tokens."""
    state: str
    """vLLM's own name of the request, by which its output processor keeps the new tokens."""
    checked: int = 0
    """The first tokens in which stop strings were looked for."""

    def with_new(self, tokens: Sequence[int], log_probs: Sequence[float]) -> PartialRollout:
        """Return the rollout with the tokens that vLLM has added to it."""
        before, version = self.partial, np.full(len(tokens), self.version, dtype=np.int32)
        return replace(
            before,
            tokens=np.concatenate([before.tokens, np.array(tokens, dtype=np.int32)]),
            log_probs=np.concatenate([before.log_probs, np.array(log_probs, dtype=np.float32)]),
            versions=np.concatenate([before.versions, version]),
        )


class PartialRollouts:
    def __init__(self, engine: Any, texts: Texts) -> None:
        """`engine`: vLLM's LLMEngine."""
        self._engine = engine
        self._texts = texts
        self._numbers = count()
        self._under_way: dict[str, _UnderWay] = {}
        """vLLM's name of the request → the rollout."""

    @property
    def left(self) -> frozenset[Key]:
        return frozenset(rollout.partial.key for rollout in self._under_way.values())

    def add(self, partial: PartialRollout, params: Any, version: int) -> None:
        """Add a rollout. `params`: vLLM's sampling parameters for the rest of the rollout."""
        from vllm.sampling_params import RequestOutputKind

        # An output for each request and token would keep this thread longer than a GPU decodes.
        params.output_kind = RequestOutputKind.FINAL_ONLY
        name = f"rollout-{next(self._numbers)}"
        tokens = [*self._texts.tokens(partial), *partial.tokens.tolist()]
        images = self._texts.images(partial)
        prompt = vllm_images.engine_input(self._engine.renderer, tokens, images)
        state = self._engine.add_request(name, prompt, params)
        self._under_way[name] = _UnderWay(partial, version, state)

    def go_on(self, seconds: float) -> list[FinishedRollout]:
        """Decode for `seconds`, or until no rollout is left. Return the finished rollouts."""
        deadline = time.monotonic() + seconds
        ended = []
        while self._under_way:
            for output in self._engine.step():
                (whole,) = output.outputs
                rollout = self._under_way.pop(output.request_id)
                made = rollout.with_new(whole.token_ids, whole.logprobs.logprobs)
                ended.append(self._ended(made, whole.finish_reason == "stop"))
            if time.monotonic() >= deadline:
                break
        return [*ended, *self._stopped()]

    def _stopped(self) -> list[FinishedRollout]:
        """End the rollouts that have a stop string, and return them."""
        ended = []
        for name, rollout in list(self._under_way.items()):
            context = rollout.partial.context
            if context is None or not context.stops:
                continue
            made = self._current(rollout)  # a weight update may divide a stop string
            if self._texts.stop(made.tokens, context.stops, rollout.checked) is not None:
                self._engine.abort_request([name])
                del self._under_way[name]
                ended.append(self._ended(made, by_stop=True))
            rollout.checked = len(made.tokens)
        return ended

    def partials(self) -> list[PartialRollout]:
        return [self._current(rollout) for rollout in self._under_way.values()]

    def _current(self, rollout: _UnderWay) -> PartialRollout:
        state = self._engine.output_processor.request_states[rollout.state]
        log_probs = state.logprobs_processor.logprobs.logprobs
        return rollout.with_new(state.detokenizer.output_token_ids, log_probs)

    def withdraw(self) -> list[PartialRollout]:
        """Remove all rollouts from the engine, and return them with their tokens so far."""
        partials = self.partials()
        self._engine.abort_request(list(self._under_way))
        self._under_way.clear()
        return partials

    def _ended(self, partial: PartialRollout, by_stop: bool) -> FinishedRollout:
        row = TokenRow(partial.tokens, partial.log_probs, by_stop, partial.versions)
        row = self._texts.cut(row, partial)
        (completion,) = self._texts.completions([self._texts.tokens(partial)], [row])
        return FinishedRollout(partial.key, completion)
