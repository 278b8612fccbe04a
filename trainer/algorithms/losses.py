"""Losses over action tokens: pure functions of flat tensors.

N action tokens of one micro-batch lie end to end, whole sequences only. Every loss is a sum over
tokens of weight x loss; the weights come from `token_weights`, made once for the *whole*
optimiser step. Summed over micro-batches (and ranks), the gradients are therefore the same however
the step was cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.algorithms.importance_sampling import Correction, CorrectionSettings, correct
from trainer.algorithms.kl import kl
from trainer.algorithms.segments import segment_mean
from trainer.types import BoolArray

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


def token_weights(actions: BoolArray, mode: str, longest: int) -> NDArray[np.float64]:
    """[B, T] weights of the action tokens of a whole optimiser step; zero elsewhere.

    token: 1 / action tokens (DAPO, Yu et al. 2025, equation 8). sequence: 1 / (sequences x the
    sequence's own tokens), the mean of sequences' means (GRPO, Shao et al. 2024, equation 3).
    constant: 1 / (sequences x `longest`), with no length in it (Dr. GRPO, Liu et al. 2025,
    section 3.2). Sequences without any action token do not count.

    Raises ValueError for another mode.
    """
    lengths = actions.sum(axis=1)
    sequences = max(1, int((lengths > 0).sum()))
    if mode == "token":
        weight = np.full(len(actions), 1 / max(1, int(lengths.sum())))
    elif mode == "sequence":
        weight = 1 / (sequences * np.maximum(lengths, 1))
    elif mode == "constant":
        weight = np.full(len(actions), 1 / (sequences * longest))
    else:
        raise ValueError(f"unknown aggregation {mode!r}")
    return np.where(actions, weight[:, None], 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    clip_range: tuple[float, float] = (0.2, 0.2)
    """How far the ratio may be below and above 1."""
    loss_type: str = "ppo"
    """ppo or gspo"""
    dual_clip: float | None = None
    kl_estimator: str = "k1"
    kl_unbiased_gradient: bool = False
    """The gradient of the KL itself, in place of the estimator's."""
    entropy_coef: float | None = None
    """Weight of the entropy; 0 to see its metric only, None to leave it out."""
    correction: CorrectionSettings = field(default_factory=CorrectionSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticObjective:
    value_clip: float
    value_head_prefix: str = "score"
    """The head's name in a model's files."""
