"""Rollouts through a transformers model: any machine, no vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from trainer import weights as weight_transfer
from trainer.actors.model import load_causal_lm, prepare_process
from trainer.engines import cache
from trainer.engines.base import EngineSettings, Request
from trainer.engines.decode import Decoder, Row
from trainer.types import Completion, Sampling, UnfitModelError, Weights


class HFEngine:
    """An Engine on one device."""

    def __init__(self, settings: EngineSettings) -> None:
        device = prepare_process(deterministic=settings.deterministic)
        dtype = torch.bfloat16 if settings.mixed_precision else torch.float32
        self._model = load_causal_lm(settings.model, dtype).to(device).eval()
        if not cache.holds(self._model.config):
            raise UnfitModelError(
                f"--rollout_engine hf cannot decode {settings.model}: a layer of "
                f"{type(self._model).__name__} keeps a state that is not keys and values"
            )
        self._tokenizer = AutoTokenizer.from_pretrained(settings.model)
        self._stops = _stop_tokens(self._model, self._tokenizer)
        self._decoder = Decoder(self._model, self._stops, settings.slots, device)
        self._settings = settings
        self._version = 0

    def load(self, weights: Weights, version: int) -> None:
        weight_transfer.load(self._model, weights)
        self._version = version

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        prompts = [self._tokenize(request.text) for request in requests]
        seeds = [request.seeds for request in requests]
        written = self._decoder.decode(prompts, seeds, sampling)
        of_row = [p for p, r in zip(prompts, requests, strict=True) for _ in r.seeds]
        rows = [written.row(row) for row in range(len(of_row))]
        texts = self._tokenizer.batch_decode([row.tokens for row in rows], skip_special_tokens=True)
        return [self._completion(*parts) for parts in zip(of_row, rows, texts, strict=True)]

    def _tokenize(self, text: str) -> list[int]:
        special = self._settings.add_special_tokens
        ids: list[int] = self._tokenizer(text, add_special_tokens=special)["input_ids"]
        return ids[-self._settings.prompt_max_len :]

    def _completion(self, prompt: list[int], row: Row, text: str) -> Completion:
        start = len(prompt)
        tokens = np.concatenate([np.array(prompt, dtype=np.int64), row.tokens])
        return Completion(
            text=text,
            tokens=tokens,
            actions=np.arange(len(tokens)) >= start,
            log_probs=np.concatenate([np.zeros(start, dtype=np.float32), row.log_probs]),
            finished=row.finished,
            version=self._version,
        )


def _stop_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The end-of-sequence tokens of model and tokeniser together."""
    configured = model.generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    stops = sorted({token for token in [*listed, tokenizer.eos_token_id] if token is not None})
    if not stops:
        raise UnfitModelError("neither the model nor its tokeniser has an end-of-sequence token")
    return stops
