"""What a causal language model says about samples: log-probabilities, and entropy if asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.actors.base import ModelSettings
from trainer.actors.forward import Forward
from trainer.actors.head import LogitsAsStates, projection_of
from trainer.actors.log_probs import of_logits, token_log_probs
from trainer.actors.model import in_passes, scoring_cut, share_threads
from trainer.types import FloatArray, Sequences


class Scorer:
    """A model with its head, scoring the actions of samples."""

    def __init__(self, model: Any, device: torch.device, settings: ModelSettings) -> None:
        self._projection = projection_of(model)
        self._forward = Forward(
            model.base_model if self._projection else LogitsAsStates(model),
            device,
            mixed_precision=settings.mixed_precision,
            packed=settings.packing,
        )
        self._cut = scoring_cut(settings, packed=self.packed)
        self._temperature = settings.temperature
        self._at_once = settings.at_once

    def score(self, sequences: Sequences, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """[N] log-probability of each action given what precedes it, and [N] entropy or None."""
        states = self._forward.states(sequences)
        tokens = self._forward.tensor(sequences.tokens[sequences.actions])
        temperature = self._temperature
        if self._projection is None:
            return of_logits(states, tokens, temperature, entropy=entropy)
        return token_log_probs(states, tokens, self._projection, temperature, entropy=entropy)

    def log_probs(self, sequences: Sequences) -> FloatArray:
        """[B, T] log-probability of each action token; zero elsewhere."""
        share_threads(self._at_once)
        return in_passes(lambda part: self.score(part)[0], sequences, self._cut)

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return self._forward.tensor(array)

    @property
    def packed(self) -> bool:
        return self._forward.packed
