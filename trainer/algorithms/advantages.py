"""Rewards → advantages and returns, in numpy on the driver.

Arrays are [B, T], aligned with the tokens; `action_mask` marks the tokens that count. A sample
whose reward is unknown has no action token, so it does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.algorithms.kl import kl
from trainer.config.estimators import ESTIMATORS, Baseline
from trainer.config.options.algorithm import AdvantageSettings
from trainer.types import BoolArray, FloatArray

Floats = NDArray[np.floating]
"""Inputs: float32 from the workers, or wider numbers."""

Numbers = NDArray[np.float64]
"""Sums are computed in float64; `estimate` rounds at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """What advantages are estimated from."""

    rewards: Floats
    """[B]; NaN if unknown."""
    action_mask: BoolArray
    old_log_probs: Floats | None = None
    """Needed if the KL is in the reward, as is `ref_log_probs`."""
    ref_log_probs: Floats | None = None
    values: Floats | None = None
    """Needed by gae."""
    turn_rewards: Floats | None = None
    """[B, T] parts of `rewards` that belong to the last token of a turn; None: there are none."""
    group_size: int = 1
    """Number of completions of one prompt, which are neighbours in the batch."""
    kl_coef: float = 0.0
    """Weight of the KL in the reward; 0 if the KL is in the loss."""
    kl_estimator: str = "k1"


def estimate(settings: AdvantageSettings, inputs: AdvantageInputs) -> tuple[FloatArray, FloatArray]:
    """Return advantages and returns, both [B, T].

    The order is OpenRLHF's: group baseline, clip, token rewards with KL, estimator, whitening.
    """
    action_mask = inputs.action_mask
    above = subtract(settings.estimator, inputs.rewards, inputs.group_size)
    token_rewards = place_rewards(np.clip(above, *settings.reward_clip_range), action_mask)
    if inputs.turn_rewards is not None and not divides(settings.estimator):
        of_turns = np.where(action_mask, inputs.turn_rewards, 0)
        token_rewards += of_turns - place_rewards(of_turns.sum(axis=1), action_mask)
    if inputs.ref_log_probs is not None and inputs.kl_coef:
        assert inputs.old_log_probs is not None
        penalty = kl(inputs.old_log_probs, inputs.ref_log_probs, inputs.kl_estimator)
        token_rewards -= inputs.kl_coef * np.where(action_mask, penalty, 0)
    if settings.estimator == "gae":
        assert inputs.values is not None
        discounts = settings.gamma, settings.lambd
        advantages, returns = gae(token_rewards, inputs.values, action_mask, *discounts)
    else:
        advantages = returns = discounted_sums(token_rewards, action_mask, settings.gamma)
    if settings.whitens:
        advantages = whiten(advantages, action_mask, std_norm=not settings.no_std_norm)
    return advantages.astype(np.float32), returns.astype(np.float32)


def divides(estimator: str) -> bool:
    """Return whether the baseline divides rewards by a deviation.

    Parts of such a reward have another scale, so that all of it stays at the last action token.
    """
    return ESTIMATORS[estimator].baseline is Baseline.GROUP_NORM


def place_rewards(scores: Numbers, action_mask: BoolArray) -> Numbers:
    """Return [B, T] each sample's score [B] at its last action token; zero elsewhere."""
    after = np.cumsum(action_mask[:, ::-1], axis=1)[:, ::-1]
    is_last = action_mask & (after == 1)
    return np.where(is_last, scores[:, None], 0)


def gae(
    rewards: Floats, values: Floats, action_mask: BoolArray, gamma: float, lambd: float
) -> tuple[Numbers, Numbers]:
    """Return generalised advantage estimates (Schulman et al. 2015, equation 16) and returns.

    δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γλ A_{t+1}, R_t = A_t + V_t, where t + 1 is the next
    *action*: tokens that the policy did not choose are skipped.
    """
    ahead = _in_order(values, action_mask)
    deltas = _in_order(rewards, action_mask) - ahead
    deltas[:-1] += gamma * ahead[1:]
    advantages = _in_place(_sums_of_followers(deltas, gamma * lambd), action_mask)
    returns = advantages + np.where(action_mask, values, 0)
    return advantages, returns


def discounted_sums(rewards: Floats, action_mask: BoolArray, gamma: float) -> Numbers:
    """Return R_t = r_t + γ R_{t+1} over action tokens; zero elsewhere."""
    sums = _sums_of_followers(_in_order(rewards, action_mask), gamma)
    return _in_place(sums, action_mask)


def _in_order(array: Floats, action_mask: BoolArray) -> Numbers:
    """[B, T] → [A, B]: row k has each sample's k-th action, zero for samples with fewer.

    Steps are then contiguous rows, and nothing after a sample's end enters its sums.
    """
    places = _places(action_mask)
    ordered = np.zeros(places.shape)
    ordered[places] = array[action_mask]
    return np.ascontiguousarray(ordered.T)


def _in_place(ordered: Numbers, action_mask: BoolArray) -> Numbers:
    """[A, B] → [B, T]: the inverse of `_in_order`; zero at tokens that are no actions."""
    spread = np.zeros(action_mask.shape)
    spread[action_mask] = np.ascontiguousarray(ordered.T)[_places(action_mask)]
    return spread


def _places(action_mask: BoolArray) -> BoolArray:
    """Return [B, A] true in the first k places of a sample with k actions."""
    counts = action_mask.sum(axis=1)
    places: BoolArray = np.arange(counts.max(initial=0)) < counts[:, None]
    return places


def _sums_of_followers(terms: Numbers, discount: float) -> Numbers:
    """Return S_k = x_k + discount · S_{k+1}, down the rows of [A, B]."""
    sums = terms.copy()
    for k in reversed(range(len(sums) - 1)):
        sums[k] += discount * sums[k + 1]
    return sums


def whiten(advantages: Numbers, action_mask: BoolArray, *, std_norm: bool = True) -> Numbers:
    """Return (A − μ) / √max(var, 1e-8) over the batch's action tokens; zero elsewhere.

    REINFORCE++ (Hu et al. 2025, section 3.3). Without `std_norm` the result is A − μ.
    """
    chosen = advantages[action_mask]
    if not chosen.size:
        return np.zeros_like(advantages)
    scale = 1 / np.sqrt(max(chosen.var(), 1e-8)) if std_norm else 1.0
    return np.where(action_mask, (advantages - chosen.mean()) * scale, 0)


Groups = NDArray[np.float64]

EPSILON = 1e-9
"""Prevents 0 / 0 for a group of equal rewards."""


def above_mean(rewards: Groups) -> Groups:
    """Return r − mean: REINFORCE++-baseline (Hu et al. 2025), Dr. GRPO (Liu et al. 2025)."""
    known, _, mean = _moments(rewards)
    return np.where(known, rewards - mean, 0)


def above_batch_mean(rewards: Groups) -> Groups:
    """Return r − mean of the known rewards of all prompts: for one completion a prompt."""
    known = ~np.isnan(rewards)
    mean = rewards[known].mean() if known.any() else 0.0
    return np.where(known, rewards - mean, 0)


def above_others(rewards: Groups) -> Groups:
    """Return r − mean of the others: leave-one-out (Ahmadian et al. 2024, equation 8)."""
    known, count, mean = _moments(rewards)
    # r − (n·mean − r) / (n − 1) = n / (n − 1) · (r − mean)
    return np.where(known, (rewards - mean) * count / np.maximum(count - 1, 1), 0)


def normalised(rewards: Groups) -> Groups:
    """Return (r − mean) / (std + 1e-9) with ddof 1: GRPO (Shao et al. 2024, section 4.1.2)."""
    known, count, mean = _moments(rewards)
    centred = np.where(known, rewards - mean, 0)
    variance = (centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1)
    normal: Groups = centred / (np.sqrt(variance) + EPSILON)
    return normal


def _moments(rewards: Groups) -> tuple[NDArray[np.bool_], Groups, Groups]:
    """Return which rewards are comparable [P, n]; each prompt's count of known ones, their mean."""
    known = ~np.isnan(rewards)
    count = known.sum(axis=1, keepdims=True)
    mean = np.where(known, rewards, 0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    return known & (count > 1), count.astype(np.float64), mean


BASELINES: dict[Baseline, Callable[[Groups], Groups]] = {
    Baseline.GROUP_MEAN: above_mean,
    Baseline.OTHERS_MEAN: above_others,
    Baseline.GROUP_NORM: normalised,
    Baseline.BATCH_MEAN: above_batch_mean,
}


def subtract(estimator: str, rewards: Floats, size: int) -> Groups:
    """Return [B] rewards minus the estimator's baseline, in groups of `size` neighbours."""
    flat, baseline = rewards.astype(np.float64), ESTIMATORS[estimator].baseline
    if baseline is Baseline.NONE:
        return np.nan_to_num(flat)
    return BASELINES[baseline](flat.reshape(-1, size)).reshape(-1)
