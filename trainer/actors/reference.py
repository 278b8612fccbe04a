"""The reference: the policy as it was before training, which the KL is measured to."""

from __future__ import annotations

import torch

from trainer.actors.base import ModelSettings
from trainer.actors.model import (
    Forward,
    in_micro_batches,
    load_causal_lm,
    prepare_process,
    token_log_probs,
)
from trainer.types import FloatArray, Sequences


class ReferenceActor:
    def __init__(self, settings: ModelSettings) -> None:
        device = prepare_process()
        dtype = torch.bfloat16 if settings.mixed_precision else torch.float32
        model = load_causal_lm(settings.model, dtype).to(device).eval()
        self._forward = Forward(model, device, settings.mixed_precision)
        self._settings = settings

    def log_probs(self, sequences: Sequences) -> FloatArray:
        return in_micro_batches(
            lambda part: token_log_probs(self._forward, part, self._settings.temperature),
            sequences,
            self._settings.micro_batch_size,
        )
