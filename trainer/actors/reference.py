"""The reference: the policy as it was before training, which the KL is measured to."""

from __future__ import annotations

import torch

from trainer import shares
from trainer.actors.base import ALONE, Metrics, ModelSettings, Rank
from trainer.actors.model import load_causal_lm, prepare_process
from trainer.actors.peaks import Peaks
from trainer.actors.scorer import Scorer
from trainer.types import FloatArray, Sequences


class ReferenceActor:
    def __init__(self, settings: ModelSettings, rank: Rank = ALONE) -> None:
        self._device = prepare_process(deterministic=settings.deterministic)
        self._peaks = Peaks()
        dtype = torch.bfloat16 if settings.mixed_precision else torch.float32
        model = load_causal_lm(settings.model, dtype, settings.attention)
        self._model = model.to(self._device).eval()
        self._scorer = Scorer(model, self._device, settings)
        self._offload = settings.offload
        self._rank = rank

    def log_probs(self, sequences: Sequences) -> FloatArray:
        with self._peaks.phase("forward"):
            self._model.to(self._device)
            scored = self._scorer.log_probs(sequences, self._rank)
            if self._offload:
                self._model.to("cpu")
        return scored

    def peaks(self) -> Metrics:
        return shares.peaks("reference", self._peaks.taken())
