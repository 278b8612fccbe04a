"""Losses over action tokens: pure functions of flat tensors.

The N action tokens of one micro-batch lie end to end, whole sequences only. A loss is the sum over
tokens of weight x token loss. `token_weights` computes the weights once for the *whole* optimizer
step, so the gradients, added up over micro-batches and ranks, do not depend on how the step was
split. The policy losses' formulas are in `policy_loss_formulas`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.algorithms.importance_sampling import Correction, correct, segment_mean
from trainer.algorithms.kl import kl
from trainer.algorithms.objectives import PolicyObjective
from trainer.algorithms.own_functions import OwnFunction, described
from trainer.algorithms.policy_loss_formulas import FORMULAS, Bounds, PolicyTokens, TokenLosses
from trainer.config.policy_losses import EngineCorrection, RatioLevel
from trainer.types import IntArray

RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±RATIO_LIMIT before exp, so that no token overflows the loss."""

SMALLEST_WEIGHT = 1e-10
"""Weight of a dropped token in a geometric mean, as in verl."""

KL_WEIGHT_LIMIT = 10.0
"""Largest weight that a token's ratio gives to the unbiased gradient of the KL."""


@dataclass(frozen=True, slots=True)
class LossPart:
    value: Tensor
    """Scalar with a gradient; summed over micro-batches."""
    metrics: dict[str, Tensor]
    """Parts of token means, [] in fp64; summed over micro-batches and ranks.

    They stay on the device: reading a number would wait for all kernels before it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """Inputs of the policy's loss; tensors are [N]."""

    log_probs: Tensor
    """Under the current policy. Only this and `entropy` have a gradient."""
    old_log_probs: Tensor
    """Under the policy before the step's first update."""
    advantages: Tensor
    weights: Tensor
    """Weight of each token in the loss of the whole optimizer step."""
    rows: Tensor
    """Sequence id of each token; ids are arbitrary."""
    metric_weight: float
    """Weight of each token in metrics: 1 / action tokens of the whole optimizer step."""
    rollout_log_probs: Tensor | None = None
    """Computed by the engine when it sampled the tokens."""
    ref_log_probs: Tensor | None = None
    kl_coef: float = 0.0
    entropy: Tensor | None = None


def policy_loss(inputs: PolicyInputs, objective: PolicyObjective) -> LossPart:
    """Return the loss of `POLICY_LOSSES` with importance weights, plus KL, minus entropy.

    Raises ValueError if the objective needs an input that is None, and UserFormulaError for a
    user's loss that fails.
    """
    log_ratio = _log_ratio(inputs, objective)
    tokens = PolicyTokens(
        log_ratio=log_ratio,
        log_probs=inputs.log_probs,
        advantages=inputs.advantages,
        sequence_mean=partial(segment_mean, rows=inputs.rows),
    )
    losses = _token_losses(tokens, objective)
    values = losses.values
    correction = _correction(inputs, objective)
    if correction is not None:
        values = correction.weights * values
    value = (values * inputs.weights).sum()
    metrics = {
        "policy_loss": _total(value),
        "ppo_clip_ratio": _total(losses.clipped) * inputs.metric_weight,
        "ppo_kl": _total(inputs.old_log_probs - inputs.log_probs) * inputs.metric_weight,
        "ratio": _total(log_ratio.exp()) * inputs.metric_weight,
    }
    if correction is not None:
        metrics["vllm_kl"] = -_total(correction.log_ratio) * inputs.metric_weight
        metrics["is_filter_ratio"] = _total(correction.outside) * inputs.metric_weight
    penalty, penalties = _penalties(inputs, objective)
    return LossPart(value + penalty, metrics | penalties)


def _token_losses(tokens: PolicyTokens, objective: PolicyObjective) -> TokenLosses:
    if objective.own:
        return own_losses(objective.own, tokens, objective.loss)
    found = FORMULAS[objective.loss.policy_loss_type](tokens, objective.loss)
    return found if isinstance(found, TokenLosses) else _unclipped(found)


def _unclipped(values: Tensor) -> TokenLosses:
    return TokenLosses(values, torch.zeros_like(values, dtype=torch.bool))


def own_losses(own: OwnFunction, tokens: PolicyTokens, bounds: Bounds) -> TokenLosses:
    """Return the losses of tokens by a user's function. Raises UserFormulaError if they are none.

    Numbers that are not finite are its fault only if its inputs are finite.
    """
    answer = own.call(tokens, bounds)
    found = answer if isinstance(answer, TokenLosses) else None
    values, clipped = (found.values, found.clipped) if found else (answer, None)
    wanted = tokens.log_probs.shape
    for what, tensor in (("losses", values), ("clipped", clipped)):
        if tensor is None and what == "clipped":
            continue
        if not isinstance(tensor, Tensor):
            raise own.wrong(f"returned {described(tensor)} as {what}, not a tensor")
        if tensor.shape != wanted:
            raise own.wrong(
                f"returned {what} of shape {tuple(tensor.shape)} for {wanted[0]} tokens, "
                f"where {tuple(wanted)} is wanted: one for each token"
            )
    if not values.requires_grad:
        raise own.wrong(
            "returned losses without a gradient: compute them from log_ratio or log_probs"
        )
    inputs = (tokens.log_ratio, tokens.log_probs, tokens.advantages)
    bad = ~values.isfinite()
    if bad.any() and all(bool(tensor.isfinite().all()) for tensor in inputs):
        first = values[bad][0].item()
        raise own.wrong(f"returned {first} for {int(bad.sum())} of {wanted[0]} tokens")
    return found or _unclipped(values)


def _log_ratio(inputs: PolicyInputs, objective: PolicyObjective) -> Tensor:
    """Return [N] the log of the ratio: the token's, or its sequence's (geometric mean)."""
    entry, old = objective.loss.policy_loss, inputs.old_log_probs
    if entry.correction is EngineCorrection.ENGINE_RATIO and objective.correction.level != "off":
        old = _needed(inputs.rollout_log_probs, "rollout_log_probs")
    log_ratio = inputs.log_probs - old
    if entry.level is RatioLevel.SEQUENCE:
        log_ratio = segment_mean(log_ratio, inputs.rows)
    return log_ratio.clamp(-RATIO_LIMIT, RATIO_LIMIT)


def _correction(inputs: PolicyInputs, objective: PolicyObjective) -> Correction | None:
    """Return the weights of tokens; None without a correction by weights."""
    by_ratio = objective.loss.policy_loss.correction is EngineCorrection.ENGINE_RATIO
    if objective.correction.level == "off" or by_ratio:
        return None
    rollout = _needed(inputs.rollout_log_probs, "rollout_log_probs")
    found = correct(inputs.old_log_probs, rollout, inputs.rows, objective.correction)
    if objective.loss.policy_loss.correction is EngineCorrection.SEQUENCE_WEIGHTS:
        logs = (found.weights + SMALLEST_WEIGHT).log()
        found = replace(found, weights=segment_mean(logs, inputs.rows).exp())
    return found


def _penalties(
    inputs: PolicyInputs, objective: PolicyObjective
) -> tuple[Tensor | float, dict[str, Tensor]]:
    """Return what KL and entropy add to the loss, and their metrics."""
    total: Tensor | float = 0.0
    metrics = {}
    if inputs.kl_coef:
        reference = _needed(inputs.ref_log_probs, "ref_log_probs")
        estimate = kl(inputs.log_probs, reference, objective.kl.estimator)
        metrics["kl"] = _total(estimate) * inputs.metric_weight
        if objective.kl.unbiased_gradient:
            estimate = _with_gradient_of_kl(estimate, inputs, reference)
        term = (estimate * inputs.weights).sum()
        total = total + inputs.kl_coef * term
        metrics["kl_loss"] = _total(term)
    if objective.loss.entropy_loss_coef is not None:
        entropy = _needed(inputs.entropy, "entropy")
        total = total - objective.loss.entropy_loss_coef * (entropy * inputs.weights).sum()
        metrics["entropy"] = _total(entropy) * inputs.metric_weight
    return total, metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueInputs:
    """Inputs of the critic's loss; tensors are [N]."""

    values: Tensor
    """Of the current critic; the only tensor with a gradient."""
    old_values: Tensor
    """Of the critic before the step's first update."""
    returns: Tensor
    weights: Tensor
    """Weight of each token in the loss of the whole optimizer step."""
    metric_weight: float
    """Weight of each token in metrics: 1 / action tokens of the whole optimizer step."""


def value_loss(inputs: ValueInputs, value_clip: float) -> LossPart:
    """Return ½ Σ weight · max((clip(V, V_old ± ε) − R)², (V − R)²), where ε is `value_clip`."""
    values, old_values, returns = inputs.values, inputs.old_values, inputs.returns
    clipped = old_values + (values - old_values).clamp(-value_clip, value_clip)
    error, clipped_error = (values - returns) ** 2, (clipped - returns) ** 2
    value = 0.5 * (torch.max(clipped_error, error) * inputs.weights).sum()
    metrics = {
        "critic_loss": _total(value),
        "values": _total(values) * inputs.metric_weight,
        "value_clip_ratio": _total(clipped_error > error) * inputs.metric_weight,
    }
    return LossPart(value, metrics)


def _with_gradient_of_kl(estimate: Tensor, inputs: PolicyInputs, reference: Tensor) -> Tensor:
    """Return the estimate's values with the gradient w ℓ ∇log π: its mean is KL(π ‖ π_ref)'s.

    ℓ = log π − log π_ref. w = π/π_old corrects for samples that π_old generated; it is bounded
    like OpenRLHF's.
    """
    log_ratio = inputs.log_probs - reference
    drift = inputs.log_probs - inputs.old_log_probs
    weight = drift.exp().clamp(max=KL_WEIGHT_LIMIT).detach()
    surrogate = weight * log_ratio**2 / 2
    return estimate.detach() + surrogate - surrogate.detach()


def _total(tensor: Tensor) -> Tensor:
    return tensor.detach().sum(dtype=torch.float64)


def _needed(tensor: Tensor | None, name: str) -> Tensor:
    if tensor is None:
        raise ValueError(f"this objective needs {name}")
    return tensor


def token_weights(actions: IntArray, mode: str, longest: int) -> NDArray[np.float64]:
    """Return [B] the weight of each action of the samples of a whole optimizer step.

    `actions` [B]: their numbers of actions. token: 1 / action tokens (DAPO, Yu et al. 2025,
    equation 8). sequence: 1 / (sequences x the sequence's own tokens), the mean of sequences' means
    (GRPO, Shao et al. 2024, equation 3). constant: 1 / (sequences x `longest`), independent of
    lengths (Dr. GRPO, Liu et al. 2025, section 3.2). Sequences without an action do not count.

    Raises ValueError if the mode is unknown.
    """
    sequences = max(1, int((actions > 0).sum()))
    if mode == "token":
        return np.full(len(actions), 1 / max(1, int(actions.sum())))
    if mode == "sequence":
        return 1 / (sequences * np.maximum(actions, 1))
    if mode == "constant":
        return np.full(len(actions), 1 / (sequences * longest))
    raise ValueError(f"unknown aggregation {mode!r}")
