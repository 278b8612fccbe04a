"""The reference: the policy as it was before training, which the KL is measured to."""

from __future__ import annotations

import torch

from trainer.actors.base import ModelSettings
from trainer.actors.model import load_causal_lm, prepare_process
from trainer.actors.scorer import Scorer
from trainer.types import FloatArray, Sequences


class ReferenceActor:
    def __init__(self, settings: ModelSettings) -> None:
        device = prepare_process()
        dtype = torch.bfloat16 if settings.mixed_precision else torch.float32
        model = load_causal_lm(settings.model, dtype, settings.attention).to(device).eval()
        self._scorer = Scorer(model, device, settings)

    def log_probs(self, sequences: Sequences) -> FloatArray:
        return self._scorer.log_probs(sequences)
