"""Importance sampling: correct for the difference between rollout engine and trainer.

Kernels, precision and batch shapes differ between a rollout engine and the trainer, so the "old"
policy of the ratio is not the policy that sampled the tokens (Yao et al. 2025, "Your efficient RL
framework secretly brings you off-policy RL training"). Names and statistics are OpenRLHF's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config.options.algorithm import CorrectionSettings

EDGE = 1e-6
"""Probabilities are clamped to [EDGE, 1 − EDGE], so that the binary KL is finite."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Importance weights of tokens, and what they were computed from."""

    weights: Tensor
    """[N] factor of each token's loss, without a gradient; 0 drops the token."""
    outside: Tensor
    """[N] whether the statistic is out of bounds."""
    log_ratio: Tensor
    """[N] log π_trainer − log π_engine"""


def correct(old: Tensor, rollout: Tensor, rows: Tensor, settings: CorrectionSettings) -> Correction:
    """Return the weights of tokens with log-probabilities `old` (trainer) and `rollout` (engine).

    Tensors are [N]. Mode mask drops tokens (or sequences) whose statistic is out of bounds, and
    weights the others by their ratio. Mode clip clamps the ratio of each token.
    """
    low, high = settings.threshold
    with torch.no_grad():
        log_ratio = old - rollout
        statistic = _statistic(old, rollout, rows, settings)
        outside = (statistic < low) | (statistic > high)
        if settings.mode == "clip":
            weights = statistic.clamp(low, high)
        else:
            weights = torch.where(outside, 0.0, log_ratio.exp())
    return Correction(weights, outside, log_ratio)


def _statistic(old: Tensor, rollout: Tensor, rows: Tensor, settings: CorrectionSettings) -> Tensor:
    """Return [N] the bounded statistic; at level seq it is equal within a sequence."""
    by_sequence = settings.level == "seq"
    if settings.gating == "ratio":
        log_ratio = old - rollout
        return (segment_mean(log_ratio, rows) if by_sequence else log_ratio).exp()
    p = rollout.exp().clamp(EDGE, 1 - EDGE)
    q = old.exp().clamp(EDGE, 1 - EDGE)
    if settings.gating == "binary_kl":
        distance = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    else:
        distance = (p - q).abs()
    return segment_mean(distance, rows) if by_sequence else distance


def segment_mean(values: Tensor, rows: Tensor) -> Tensor:
    """Return [N] the mean of `values` [N] over each token's sequence; `rows` [N] are its ids."""
    _, index, counts = torch.unique(rows, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), dtype=values.dtype, device=values.device)
    sums = sums.index_add(0, index, values)
    means: Tensor = (sums / counts)[index]
    return means
