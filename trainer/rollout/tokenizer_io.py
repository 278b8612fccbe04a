"""Requests to tokens, and generated tokens to completions, the same for every kind of engine.

`Texts.prompt` makes token ids of a prompt; env/episodes/codec.py has applied the chat template.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from env.episodes.codec import TextCodec
from env.images.types import PlacedImage
from trainer.config.options.rollout import SamplingSettings
from trainer.models import pretrained
from trainer.rollout.engine import EngineSettings
from trainer.types import (
    Completion,
    FloatArray,
    PartialRollout,
    Request,
    TokenArray,
    UnfitModelError,
    VersionArray,
)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """The generated tokens of one completion."""

    tokens: TokenArray
    log_probs: FloatArray
    finished: bool
    versions: VersionArray

    @classmethod
    def of(
        cls, tokens: TokenArray, log_probs: FloatArray, finished: bool, version: int
    ) -> TokenRow:
        """Return a row whose tokens are all of one version of the policy."""
        return cls(tokens, log_probs, finished, np.full(len(tokens), version, dtype=np.int32))

    def cut(self, length: int) -> TokenRow:
        """Return the first tokens, as a finished row."""
        return TokenRow(self.tokens[:length], self.log_probs[:length], True, self.versions[:length])


def limited(sampling: SamplingSettings, asked: Request | PartialRollout) -> SamplingSettings:
    """Return the sampling with the length limit of a context, if there is one."""
    context = asked.context
    return replace(sampling, max_new_tokens=context.limit) if context else sampling


class Texts:
    """A model's tokeniser, with the settings of the rollouts."""

    def __init__(self, settings: EngineSettings) -> None:
        self.tokenizer = pretrained.load(AutoTokenizer, settings.model)
        self.ends = end_tokens(settings.model, self.tokenizer)
        self._codec = TextCodec(self.tokenizer, self.ends)
        self._special = settings.add_special_tokens
        self._longest = settings.prompt_max_len

    def tokens(self, asked: Request | PartialRollout) -> list[int]:
        """Return the token ids of a context, or of a prompt's text."""
        return list(asked.context.tokens) if asked.context else self.prompt(asked.text)

    def images(self, asked: Request | PartialRollout) -> tuple[PlacedImage, ...]:
        """Return the images of a context."""
        return asked.context.images if asked.context else ()

    def stop(
        self, tokens: Sequence[int] | TokenArray, stops: Sequence[str], checked: int = 0
    ) -> int | None:
        """Return the length up to the end of the first stop string; None if there is none.

        `checked`: the first tokens that are known to have no stop string.
        """
        if not stops:
            return None
        # A token has at least one byte of a stop string.
        start = max(0, checked - max(len(stop.encode()) for stop in stops))

        def has_stop(length: int) -> bool:
            text = self._text(list(tokens[start:length]))
            return any(stop in text for stop in stops)

        if not has_stop(len(tokens)):
            return None
        return bisect_left(range(len(tokens)), True, lo=start, key=has_stop)

    def cut(self, row: TokenRow, asked: Request | PartialRollout) -> TokenRow:
        """Return a row up to the first stop string of its context."""
        stops = asked.context.stops if asked.context else ()
        length = self.stop(row.tokens, stops)
        return row if length is None else row.cut(length)

    def prompt(self, text: str) -> list[int]:
        """Return the token ids of a prompt. A prompt over the limit loses its beginning."""
        ids = self._codec.begin(text) if self._special else self._codec.encode(text)
        if not ids:
            raise UnfitModelError(
                f"the prompt {text!r} has no tokens with the model's tokeniser: leave it out of "
                "the data, or correct it"
            )
        return ids[-self._longest :]

    def completions(
        self, prompts: Sequence[list[int]], rows: Sequence[TokenRow]
    ) -> list[Completion]:
        """Return a completion for each prompt and its row."""
        return [
            _completion(prompt, row, self._text(row.tokens.tolist()))
            for prompt, row in zip(prompts, rows, strict=True)
        ]

    def _text(self, tokens: list[int]) -> str:
        """Return what a completion says: in a chat a message of its own, else it follows a text."""
        return self._codec.decode(tokens, follows=self._special)


def end_tokens(model: str, tokenizer: Any) -> list[int]:
    """Return the end-of-sequence tokens of a model in a directory, or in the hub's cache."""
    try:
        config = GenerationConfig.from_pretrained(model)
    except OSError:  # the model has none: its configuration names the end token
        config = GenerationConfig.from_model_config(pretrained.load(AutoConfig, model))
    return stop_tokens(config, tokenizer)


def stop_tokens(generation_config: Any, tokenizer: Any) -> list[int]:
    """Return the end-of-sequence tokens of model and tokeniser together."""
    configured = generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    stops = sorted({token for token in [*listed, tokenizer.eos_token_id] if token is not None})
    if not stops:
        raise UnfitModelError("neither the model nor its tokeniser has an end-of-sequence token")
    return stops


def _completion(prompt: list[int], row: TokenRow, text: str) -> Completion:
    start = len(prompt)
    tokens = np.concatenate([np.array(prompt, dtype=np.int32), row.tokens])
    return Completion(
        text=text,
        tokens=tokens,
        action_mask=np.arange(len(tokens)) >= start,
        log_probs=np.concatenate([np.zeros(start, dtype=np.float32), row.log_probs]),
        finished=row.finished,
        versions=np.concatenate([np.full(start, -1, dtype=np.int32), row.versions]),
    )
