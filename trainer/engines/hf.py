"""Rollouts through transformers' `generate`: any model, any machine, no vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig

from trainer import weights as weight_transfer
from trainer.actors.model import load_causal_lm, prepare_process
from trainer.engines.base import Chunk, EngineSettings
from trainer.types import Completion, Sampling, Weights


class HFEngine:
    """An Engine on one device."""

    def __init__(self, settings: EngineSettings) -> None:
        self._device = prepare_process()
        dtype = torch.bfloat16 if settings.mixed_precision else torch.float32
        self._model = load_causal_lm(settings.model, dtype).to(self._device).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(settings.model)
        self._stops = _stop_tokens(self._model, self._tokenizer)
        self._settings = settings
        self._version = 0

    def load(self, weights: Weights, version: int) -> None:
        weight_transfer.load(self._model, weights)
        self._version = version

    def generate(self, chunks: Sequence[Chunk], sampling: Sampling) -> list[Completion]:
        return [completion for chunk in chunks for completion in self._decode(chunk, sampling)]

    @torch.inference_mode()
    def _decode(self, chunk: Chunk, sampling: Sampling) -> list[Completion]:
        prompts = [self._tokenize(text) for text in chunk.texts]
        inputs, mask = self._pad_left(prompts)
        torch.manual_seed(chunk.seed)
        output = self._model.generate(
            input_ids=inputs, attention_mask=mask, generation_config=self._generation(sampling)
        )
        written = output[:, inputs.shape[1] :].cpu().numpy()
        return [self._completion(*pair) for pair in zip(prompts, written, strict=True)]

    def _tokenize(self, text: str) -> list[int]:
        special = self._settings.add_special_tokens
        ids: list[int] = self._tokenizer(text, add_special_tokens=special)["input_ids"]
        return ids[-self._settings.prompt_max_len :]

    def _pad_left(self, prompts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        width = max(map(len, prompts))
        pads = [width - len(ids) for ids in prompts]
        padded = [[self._pad] * pad + ids for pad, ids in zip(pads, prompts, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in pads]
        return torch.tensor(padded, device=self._device), torch.tensor(mask, device=self._device)

    @property
    def _pad(self) -> int:
        pad: int | None = self._tokenizer.pad_token_id
        return self._stops[0] if pad is None else pad

    def _generation(self, sampling: Sampling) -> Any:
        common = {
            "max_new_tokens": sampling.max_new_tokens,
            "eos_token_id": self._stops,
            "pad_token_id": self._pad,
        }
        if sampling.temperature == 0:
            return GenerationConfig(do_sample=False, **common)
        return GenerationConfig(
            do_sample=True,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=0,
            **common,
        )

    def _completion(self, prompt: list[int], row: np.ndarray[Any, Any]) -> Completion:
        ends = np.flatnonzero(np.isin(row, self._stops))
        finished = len(ends) > 0
        written = row[: ends[0] + 1] if finished else row
        tokens = np.concatenate([np.array(prompt, dtype=np.int64), written])
        return Completion(
            text=self._tokenizer.decode(written, skip_special_tokens=True),
            tokens=tokens,
            actions=np.arange(len(tokens)) >= len(prompt),
            finished=finished,
            version=self._version,
        )


def _stop_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The end-of-sequence tokens of model and tokeniser together."""
    configured = model.generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    stops = sorted({token for token in [*listed, tokenizer.eos_token_id] if token is not None})
    if not stops:
        raise ValueError("neither the model nor its tokeniser has an end-of-sequence token")
    return stops
