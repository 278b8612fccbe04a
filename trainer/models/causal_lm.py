"""What a causal language model says about samples: log-probabilities, and entropy if asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainer.algorithms.batching import MicroBatchLimits
from trainer.models.forward import Forward
from trainer.models.lm_head import LogitsAsStates, backbone_of, projection_of
from trainer.models.loading import in_passes, share_threads
from trainer.models.log_probs import Projection, of_logits, token_log_probs
from trainer.models.settings import ModelSettings
from trainer.types import ALONE, FloatArray, Rank, Sequences


class Head(nn.Module):
    """States → log-probabilities: a module, so that weights which ranks share are there for it."""

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        self._projection = projection
        self.weight, self.bias = projection.weight, projection.bias

    def forward(
        self, states: Tensor, tokens: Tensor, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        return token_log_probs(states, tokens, self._projection, temperature, entropy=entropy)


class Scorer(nn.Module):
    """A model with its head, scoring the actions of samples."""

    def __init__(self, model: Any, device: torch.device, settings: ModelSettings) -> None:
        super().__init__()
        self.model = model
        projection = projection_of(model)
        self._head = Head(projection) if projection else None
        self._forward = Forward(
            backbone_of(model) if projection else LogitsAsStates(model),
            device,
            mixed_precision=settings.mixed_precision,
            packed=settings.packing,
        )
        self._limits = self.limits(settings.micro_batch_size, settings.max_tokens)
        self._temperature = settings.temperature
        self._at_once = settings.at_once

    def forward(
        self, sequences: Sequences, *, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """[N] log-probability of each action given what precedes it, and [N] entropy or None."""
        states = self._forward.states(sequences)
        tokens = self._forward.tensor(sequences.tokens[sequences.actions])
        if self._head is None:
            return of_logits(states, tokens, self._temperature, entropy=entropy)
        scored: tuple[Tensor, Tensor | None]
        scored = self._head(states, tokens, self._temperature, entropy)
        return scored

    def log_probs(
        self,
        sequences: Sequences,
        rank: Rank = ALONE,
        run: Callable[[Sequences], tuple[Tensor, Any]] | None = None,
    ) -> FloatArray:
        """[B, T] log-probability of each action token of the rank's samples; zero elsewhere.

        `run` stands for this module where something is wrapped around it.
        """
        share_threads(self._at_once)
        score = run or self
        return in_passes(lambda part: score(part)[0], sequences, self._limits, rank)

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return self._forward.tensor(array)

    def limits(self, samples: int, tokens: int | None) -> MicroBatchLimits:
        return self._forward.limits(samples, tokens)

    @property
    def packed(self) -> bool:
        return self._forward.packed
