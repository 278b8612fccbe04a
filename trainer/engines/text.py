"""Text to tokens and back, the same for every kind of engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from trainer.engines.base import EngineSettings, Request
from trainer.types import Completion, FloatArray, IntArray, UnfitModelError


@dataclass(frozen=True, slots=True)
class Row:
    """One completion, in tokens."""

    tokens: IntArray
    log_probs: FloatArray
    finished: bool


class Texts:
    """A model's tokeniser, as the rollouts use it."""

    def __init__(self, settings: EngineSettings) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(settings.model)
        self._special = settings.add_special_tokens
        self._longest = settings.prompt_max_len

    def prompts(self, requests: Sequence[Request]) -> list[list[int]]:
        """Token ids of each request; a prompt that is too long loses its beginning."""
        return [self._tokenize(request.text) for request in requests]

    def completions(
        self,
        requests: Sequence[Request],
        prompts: Sequence[list[int]],
        rows: Sequence[Row],
        version: int,
    ) -> list[Completion]:
        """What was written: a row for each seed of each request, in order."""
        of_row = [p for p, r in zip(prompts, requests, strict=True) for _ in r.seeds]
        texts = self.tokenizer.batch_decode([row.tokens for row in rows], skip_special_tokens=True)
        return [
            _completion(prompt, row, text, version)
            for prompt, row, text in zip(of_row, rows, texts, strict=True)
        ]

    def _tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=self._special)["input_ids"]
        return ids[-self._longest :]


def stop_tokens(generation_config: Any, tokenizer: Any) -> list[int]:
    """The end-of-sequence tokens of model and tokeniser together."""
    configured = generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    stops = sorted({token for token in [*listed, tokenizer.eos_token_id] if token is not None})
    if not stops:
        raise UnfitModelError("neither the model nor its tokeniser has an end-of-sequence token")
    return stops


def _completion(prompt: list[int], row: Row, text: str, version: int) -> Completion:
    start = len(prompt)
    tokens = np.concatenate([np.array(prompt, dtype=np.int64), row.tokens])
    return Completion(
        text=text,
        tokens=tokens,
        actions=np.arange(len(tokens)) >= start,
        log_probs=np.concatenate([np.zeros(start, dtype=np.float32), row.log_probs]),
        finished=row.finished,
        version=version,
    )
