"""A reward model: a transformer with one output, which scores a text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from env.episodes.codec import TextCodec
from env.types import RewardRequest, Score
from trainer.algorithms import batching
from trainer.algorithms.batching import MicroBatchLimits
from trainer.config.architecture import long_factors_from
from trainer.config.reward_models import HEAD
from trainer.models import pretrained
from trainer.models.hub import unfit_model_errors
from trainer.models.loading import fitted, on_device, some_of, warn_of_unused
from trainer.models.positions import shape_of
from trainer.models.settings import RewardSettings
from trainer.models.value_model import head_prefix
from trainer.types import UnfitModelError


class ScalarRewardModel:
    """A reward model with its own tokeniser and its own chat template."""

    def __init__(self, name: str, settings: RewardSettings, device: torch.device) -> None:
        self._name, self._settings, self._device = name, settings, device
        self._tokenizer = pretrained.load(AutoTokenizer, name)
        with unfit_model_errors(name):
            self._model = model = _loaded(name, settings).eval()
        self._codec = TextCodec(self._tokenizer)
        self._is_openrlhf_s = _is_openrlhf_s(model.config)
        self._never_scored = None if self._is_openrlhf_s else _padding_of(model.config)
        if not settings.offload:
            self._model.to(device)
        self._limits = MicroBatchLimits(
            samples=settings.micro_batch_size, apart=long_factors_from(shape_of(model.config))
        )
        self._longest: int | None = getattr(
            model.config.get_text_config(), "max_position_embeddings", None
        )

    @torch.inference_mode()
    def score(self, requests: Sequence[RewardRequest]) -> list[Score]:
        scores: dict[int, Score] = {}
        tokens = {}
        for row, request in enumerate(requests):
            read = self._tokens(request)
            if isinstance(read, Score):
                scores[row] = read
            else:
                tokens[row] = read
        rows = np.array(list(tokens), dtype=np.int64)
        lengths = np.array([len(tokens[row]) for row in rows], dtype=np.int64)
        moves = self._settings.offload
        with on_device(self._model, self._device) if moves else nullcontext():
            for index in batching.micro_batches(lengths, self._limits):
                part = rows[index].tolist()
                found = self._forward([tokens[row] for row in part])
                scores |= zip(part, map(self._judged, found), strict=True)
        return [scores[row] for row in range(len(requests))]

    def _tokens(self, request: RewardRequest) -> list[int] | Score:
        """Return the sample in this model's tokens; a failed Score if the model cannot read it.

        Tokens at the end that the model was trained to see as padding are left out, because it
        scores the one before them.
        """
        tokens = self._read(request)
        if not tokens:
            return Score.failed(f"{self._name} reads no token in it")
        while len(tokens) > 1 and tokens[-1] == self._never_scored:
            tokens = tokens[:-1]
        if self._longest is not None and len(tokens) > self._longest:
            return Score.failed(f"{len(tokens)} tokens; {self._name} reads {self._longest}")
        return tokens

    def _read(self, request: RewardRequest) -> list[int]:
        """Return the sample in this model's tokens, as in its training.

        OpenRLHF adds no special token to a text but the end token, also to a chat, whose last line
        break it leaves out (`RewardDataset`). Others begin a text as their tokeniser does, with BOS
        if it has one, and end it with the end token (TRL's `RewardTrainer`); a chat of theirs
        begins and ends as its template says.
        """
        if request.messages is None and not self._is_openrlhf_s:
            return self._ended(self._codec.begin(request.query))
        if request.messages is None:
            return self._ended(self._codec.encode(request.query))
        chat = [*request.messages, {"role": "assistant", "content": request.response}]
        text = self._codec.render(chat)
        if self._is_openrlhf_s:
            return self._ended(self._codec.encode(text.rstrip("\n")))
        return self._codec.encode(text)

    def _ended(self, tokens: list[int]) -> list[int]:
        end = self._tokenizer.eos_token_id
        return tokens if end is None or tokens[-1:] == [end] else [*tokens, end]

    def _forward(self, batch: Sequence[list[int]]) -> list[float]:
        """Return the model's output for each text.

        transformers scores the last token that is not padding. The padding token must not occur in
        a text, because a text's own end would count as padding.
        """
        present = {token for tokens in batch for token in tokens}
        padding = next(token for token in range(len(present) + 1) if token not in present)
        self._model.config.get_text_config().pad_token_id = padding
        longest = max(map(len, batch))
        ids = [tokens + [padding] * (longest - len(tokens)) for tokens in batch]
        mask = [[1] * len(tokens) + [0] * (longest - len(tokens)) for tokens in batch]
        logits: Any = self._model(
            input_ids=torch.tensor(ids, device=self._device),
            attention_mask=torch.tensor(mask, device=self._device),
        ).logits
        return [float(value) for value in logits[:, 0].float()]

    def _judged(self, reward: float) -> Score:
        if math.isfinite(reward):
            return Score.of(reward)
        return Score.failed(f"{self._name} says {reward}")


def _is_openrlhf_s(config: Any) -> bool:
    """Return whether OpenRLHF has trained a reward model."""
    return HEAD not in " ".join(config.architectures or []) or hasattr(config, "value_head_prefix")


def _padding_of(config: Any) -> int | None:
    """Return the model's own padding token, which transformers never scores; None if it has none.

    Where a tokeniser has no padding, TRL pads with the end-of-sequence token, so that its models
    are trained to be scored at the token before. OpenRLHF's models are scored at the last token.
    """
    padding: int | None = config.get_text_config().pad_token_id
    return padding


def _loaded(name: str, settings: RewardSettings) -> Any:
    """Return the model as transformers' model for sequence classification.

    OpenRLHF's reward models are such models with another name of the head. Raises
    UnfitModelError if the model has no head.
    """
    config = pretrained.load(AutoConfig, name)
    if HEAD not in " ".join(config.architectures or []):
        config.num_labels = 1
    head = head_prefix(config, settings.value_head_prefix)
    model, loading = pretrained.load(
        AutoModelForSequenceClassification,
        name,
        config=fitted(name, config, None, settings.attention),
        key_mapping={rf"^{re.escape(head)}\.": "score."},
        dtype=torch.bfloat16 if settings.mixed_precision else torch.float32,
        output_loading_info=True,
    )
    if fresh := sorted(loading["missing_keys"]):
        # transformers would initialise them at random, so rewards would mean nothing.
        count = f" ({len(fresh)} of its weights)" if len(fresh) > 1 else ""
        raise UnfitModelError(f"the reward model {name} has no trained {some_of(fresh)}{count}")
    warn_of_unused(name, loading["unexpected_keys"], headless=True)
    return model
