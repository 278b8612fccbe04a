"""Losses over action tokens: pure functions of tensors.

Every loss is a sum over action tokens divided by `denominator`: the number of action tokens of
the *whole* optimiser step. Summed over micro-batches (and ranks) the gradients are therefore
those of one token mean, however the step was cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.divergence import kl

RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±this before exp, so that one token cannot overflow the loss."""


@dataclass(frozen=True, slots=True)
class Loss:
    value: Tensor
    """Scalar with a gradient; add up over micro-batches."""
    metrics: dict[str, float]
    """Shares of token means; add up over micro-batches."""


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    actions: Tensor,
    eps_clip: float,
    denominator: float,
) -> Loss:
    """PPO's clipped objective (Schulman et al. 2017, equation 7); inputs [B, T].

    ρ = exp(clamp(log π − log π_old, ±20)), L = −Σ min(ρA, clip(ρ, 1−ε, 1+ε)A) / denominator.
    """
    log_ratio = (log_probs - old_log_probs).clamp(-RATIO_LIMIT, RATIO_LIMIT)
    ratio = log_ratio.exp()
    free = ratio * advantages
    clipped = ratio.clamp(1 - eps_clip, 1 + eps_clip) * advantages
    value = -(torch.min(free, clipped) * actions).sum() / denominator
    with torch.no_grad():
        metrics = {
            "policy_loss": value.item(),
            "ppo_clip_ratio": ((clipped < free) * actions).sum().item() / denominator,
            "ppo_kl": -(log_ratio * actions).sum().item() / denominator,
        }
    return Loss(value, metrics)


def kl_loss(
    log_probs: Tensor, reference: Tensor, actions: Tensor, estimator: str, denominator: float
) -> Loss:
    """Token mean of the KL estimate to the reference; inputs [B, T]."""
    value = (kl(log_probs, reference, estimator) * actions).sum() / denominator
    return Loss(value, {"kl_loss": value.item()})


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    actions: Tensor,
    value_clip: float,
    denominator: float,
) -> Loss:
    """½ Σ max((clip(V, V_old ± ε) − R)², (V − R)²) / denominator; inputs [B, T]."""
    clipped = old_values + (values - old_values).clamp(-value_clip, value_clip)
    worst = torch.max((clipped - returns) ** 2, (values - returns) ** 2)
    value = 0.5 * (worst * actions).sum() / denominator
    metrics = {
        "critic_loss": value.item(),
        "values": (values.detach() * actions).sum().item() / denominator,
    }
    return Loss(value, metrics)
