"""Importance correction: the engine drew the tokens, the trainer's model differs a little.

Kernels, precision and batch shapes differ between a rollout engine and the trainer, so that the
"old" policy of the ratio is not the one that sampled (Yao et al. 2025, "Your efficient RL framework
secretly brings you off-policy RL training"). The names and statistics are OpenRLHF's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.algorithms.segments import segment_mean

EDGE = 1e-6
"""Probabilities stay so far from 0 and 1: the binary KL's logarithms are finite then."""


@dataclass(frozen=True, slots=True)
class Correction:
    weights: Tensor
    """[N] factor of each token's loss, without gradient; 0 drops the token."""
    outside: Tensor
    """[N] true where the statistic is out of bounds."""
    log_ratio: Tensor
    """[N] log π_trainer − log π_engine"""

    def totals(self) -> dict[str, float]:
        """Sums over tokens."""
        return {
            "vllm_kl": -self.log_ratio.sum().item(),
            "is_filter_ratio": self.outside.sum().item(),
        }


def correct(old: Tensor, rollout: Tensor, rows: Tensor, settings: CorrectionSettings) -> Correction:
    """Weights of tokens with log-probabilities `old` (trainer) and `rollout` (engine); all [N].

    Mode mask keeps a unit (token or sequence) whose statistic lies within the bounds, with each
    token's own ratio as its weight, and drops the others; mode clip clamps the token's ratio.
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
    """[N] what the bounds are on; at level seq the same for all tokens of a sequence."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSettings:
    """How the difference between engine and trainer is corrected; values are the flags'."""

    level: str = "off"
    """off, token or seq"""
    mode: str = "mask"
    """mask or clip"""
    gating: str = "ratio"
    """ratio, binary_kl or tv"""
    threshold: tuple[float, float] = (0.5, 5.0)
