"""Losses over action tokens: pure functions of flat tensors.

N action tokens of one micro-batch lie end to end, whole sequences only. Every loss is a sum over
tokens of weight x loss; the weights come from `trainer.aggregation`, made once for the *whole*
optimiser step. Summed over micro-batches (and ranks), the gradients are therefore the same however
the step was cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.actors.base import PolicyObjective
from trainer.correction import Correction, correct
from trainer.divergence import kl
from trainer.segments import segment_mean

RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±this before exp, so that one token cannot overflow the loss."""

KL_WEIGHT_LIMIT = 10.0
"""Most that a token's ratio weighs the unbiased gradient of the KL."""


@dataclass(frozen=True, slots=True)
class Loss:
    value: Tensor
    """Scalar with a gradient; add up over micro-batches."""
    metrics: dict[str, float]
    """Shares of token means; add up over micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """What the policy's loss reads; tensors are [N]."""

    log_probs: Tensor
    """Under the policy as it is now; the only one with a gradient, beside `entropy`."""
    old_log_probs: Tensor
    """Under the policy before the step's first update."""
    advantages: Tensor
    weights: Tensor
    """What each token counts in the loss of the whole optimiser step."""
    rows: Tensor
    """Which sequence a token belongs to; any integers that are equal within a sequence only."""
    share: float
    """What each token counts in metrics: 1 / action tokens of the whole optimiser step."""
    rollout_log_probs: Tensor | None = None
    """As the engine computed them when it chose the tokens."""
    reference: Tensor | None = None
    kl_coef: float = 0.0
    entropy: Tensor | None = None


def policy_loss(inputs: PolicyInputs, objective: PolicyObjective) -> Loss:
    """Clipped surrogate, corrected for the engine, plus KL, minus entropy.

    PPO (Schulman et al. 2017, equation 7), with DAPO's two bounds (Yu et al. 2025, equation 8):
    L = −min(ρA, clip(ρ, 1 − low, 1 + high) A); dual clip (Ye et al. 2020, equation 5) for A < 0:
    L = −max(min(·), cA). GSPO (Zheng et al. 2025, equations 5 and 7): ρ is one for each sequence.

    Raises ValueError where the objective needs an input that is None.
    """
    log_ratio = _log_ratio(inputs, objective)
    ratio = log_ratio.exp()
    free = ratio * inputs.advantages
    low, high = objective.clip_range
    clipped = ratio.clamp(1 - low, 1 + high) * inputs.advantages
    surrogate = torch.min(free, clipped)
    if objective.dual_clip is not None:
        bounded = torch.max(surrogate, objective.dual_clip * inputs.advantages)
        surrogate = torch.where(inputs.advantages < 0, bounded, surrogate)
    correction = _correction(inputs, objective)
    if correction is not None:
        surrogate = correction.weights * surrogate
    value = -(surrogate * inputs.weights).sum()
    metrics = {
        "policy_loss": value.item(),
        "ppo_clip_ratio": (clipped < free).sum().item() * inputs.share,
        "ppo_kl": (inputs.old_log_probs - inputs.log_probs).sum().item() * inputs.share,
        "ratio": ratio.sum().item() * inputs.share,
    }
    if correction is not None:
        metrics |= {name: total * inputs.share for name, total in correction.totals().items()}
    penalty, penalties = _penalties(inputs, objective)
    return Loss(value + penalty, metrics | penalties)


def _log_ratio(inputs: PolicyInputs, objective: PolicyObjective) -> Tensor:
    """[N] log of the ratio that is clipped: of a token, or of its sequence (geometric mean)."""
    if objective.loss_type == "ppo":
        return (inputs.log_probs - inputs.old_log_probs).clamp(-RATIO_LIMIT, RATIO_LIMIT)
    if objective.loss_type != "gspo":
        raise ValueError(f"unknown policy loss {objective.loss_type!r}")
    old = inputs.old_log_probs
    if objective.correction.level != "off":  # a sequence's ratio can be to the engine itself
        old = _needed(inputs.rollout_log_probs, "rollout_log_probs")
    mean = segment_mean(inputs.log_probs - old, inputs.rows)
    return mean.clamp(-RATIO_LIMIT, RATIO_LIMIT)


def _correction(inputs: PolicyInputs, objective: PolicyObjective) -> Correction | None:
    if objective.correction.level == "off" or objective.loss_type == "gspo":
        return None
    rollout = _needed(inputs.rollout_log_probs, "rollout_log_probs")
    return correct(inputs.old_log_probs, rollout, inputs.rows, objective.correction)


def _penalties(
    inputs: PolicyInputs, objective: PolicyObjective
) -> tuple[Tensor | float, dict[str, float]]:
    """KL to the reference and entropy, as they are added to the loss."""
    total: Tensor | float = 0.0
    metrics = {}
    if inputs.kl_coef:
        reference = _needed(inputs.reference, "reference")
        estimate = kl(inputs.log_probs, reference, objective.kl_estimator)
        if objective.kl_unbiased_gradient:
            estimate = _with_gradient_of_kl(estimate, inputs, reference)
        term = (estimate * inputs.weights).sum()
        total = total + inputs.kl_coef * term
        metrics["kl_loss"] = term.item()
    if objective.entropy_coef is not None:
        entropy = _needed(inputs.entropy, "entropy")
        total = total - objective.entropy_coef * (entropy * inputs.weights).sum()
        metrics["entropy"] = entropy.sum().item() * inputs.share
    return total, metrics


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    weights: Tensor,
    value_clip: float,
    share: float,
) -> Loss:
    """½ Σ weight · max((clip(V, V_old ± ε) − R)², (V − R)²); tensors are [N]."""
    clipped = old_values + (values - old_values).clamp(-value_clip, value_clip)
    error, clipped_error = (values - returns) ** 2, (clipped - returns) ** 2
    value = 0.5 * (torch.max(clipped_error, error) * weights).sum()
    metrics = {
        "critic_loss": value.item(),
        "values": values.sum().item() * share,
        "value_clip_ratio": (clipped_error > error).sum().item() * share,
    }
    return Loss(value, metrics)


def _with_gradient_of_kl(estimate: Tensor, inputs: PolicyInputs, reference: Tensor) -> Tensor:
    """The estimate's values with the gradient w ℓ ∇log π, whose mean is that of KL(π ‖ π_ref).

    ℓ = log π − log π_ref; w = π/π_old carries the mean from the policy that wrote the samples to
    the one that is trained, and is bounded like OpenRLHF's.
    """
    log_ratio = inputs.log_probs - reference
    drift = inputs.log_probs - inputs.old_log_probs
    weight = drift.exp().clamp(max=KL_WEIGHT_LIMIT).detach()
    surrogate = weight * log_ratio**2 / 2
    return estimate.detach() + surrogate - surrogate.detach()


def _needed(tensor: Tensor | None, name: str) -> Tensor:
    if tensor is None:
        raise ValueError(f"this objective needs {name}")
    return tensor
