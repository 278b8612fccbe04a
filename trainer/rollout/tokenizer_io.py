"""Converts text to tokens and back, in the same way for every kind of engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from trainer.models.hub import unfit_model_errors
from trainer.rollout.engine import EngineSettings
from trainer.types import Completion, FloatArray, IntArray, UnfitModelError


@dataclass(frozen=True, slots=True)
class TokenRow:
    """The generated tokens of one completion."""

    tokens: IntArray
    log_probs: FloatArray
    finished: bool
    versions: IntArray

    @classmethod
    def of(cls, tokens: IntArray, log_probs: FloatArray, finished: bool, version: int) -> TokenRow:
        """Returns a row whose tokens are all of one version of the policy."""
        return cls(tokens, log_probs, finished, np.full(len(tokens), version))


class Texts:
    """A model's tokeniser, with the settings of the rollouts."""

    def __init__(self, settings: EngineSettings) -> None:
        with unfit_model_errors(settings.model):
            self.tokenizer = AutoTokenizer.from_pretrained(settings.model)
        self._special = settings.add_special_tokens
        self._longest = settings.prompt_max_len

    def prompt(self, text: str) -> list[int]:
        """Returns the token ids of a prompt. A prompt over the limit loses its beginning."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=self._special)["input_ids"]
        if not ids:
            raise UnfitModelError(
                f"the prompt {text!r} has no tokens with the model's tokeniser: leave it out of "
                "the data, or correct it"
            )
        return ids[-self._longest :]

    def completions(
        self, prompts: Sequence[list[int]], rows: Sequence[TokenRow]
    ) -> list[Completion]:
        """Returns a completion for each prompt and its row."""
        texts = self.tokenizer.batch_decode([row.tokens for row in rows], skip_special_tokens=True)
        return [
            _completion(prompt, row, text)
            for prompt, row, text in zip(prompts, rows, texts, strict=True)
        ]


def stop_tokens(generation_config: Any, tokenizer: Any) -> list[int]:
    """Returns the end-of-sequence tokens of model and tokeniser together."""
    configured = generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    stops = sorted({token for token in [*listed, tokenizer.eos_token_id] if token is not None})
    if not stops:
        raise UnfitModelError("neither the model nor its tokeniser has an end-of-sequence token")
    return stops


def _completion(prompt: list[int], row: TokenRow, text: str) -> Completion:
    start = len(prompt)
    tokens = np.concatenate([np.array(prompt, dtype=np.int64), row.tokens])
    return Completion(
        text=text,
        tokens=tokens,
        action_mask=np.arange(len(tokens)) >= start,
        log_probs=np.concatenate([np.zeros(start, dtype=np.float32), row.log_probs]),
        finished=row.finished,
        versions=np.concatenate([np.full(start, -1), row.versions]),
    )
