"""Rewards → advantages and returns, in numpy on the driver.

Arrays are [B, T], aligned with the tokens; `actions` says which tokens count. A sample whose
reward is unknown has no action at all there: it takes part in nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.algorithms.kl import kl
from trainer.types import BoolArray, FloatArray

Numbers = NDArray[np.float64]
"""What is summed is summed in float64; `estimate` rounds at the end."""

WHITENED = ("gae", "reinforce", "reinforce_baseline")
"""Estimators whose advantages are normalised over the action tokens of the whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """How advantages are estimated."""

    name: str
    """gae, reinforce, or a key of `baselines.BASELINES`"""
    group_size: int
    """Completions of one prompt; neighbours in the batch."""
    gamma: float = 1.0
    lambd: float = 1.0
    kl_coef: float = 0.0
    """Weight of the KL in the reward; 0 where it is in the loss."""
    kl_estimator: str = "k1"
    reward_range: tuple[float, float] = (-10.0, 10.0)
    std_norm: bool = True
    """Whitening divides by the deviation, too."""


def estimate(
    estimator: Estimator,
    rewards: FloatArray,
    actions: BoolArray,
    log_probs: FloatArray | None,
    reference: FloatArray | None,
    values: FloatArray | None,
) -> tuple[FloatArray, FloatArray]:
    """Advantages and returns [B, T] of samples with `rewards` [B] (NaN: unknown).

    In OpenRLHF's order: group baseline, clip, token rewards with KL, estimator, whitening.
    `values` is needed by gae, `reference` by a KL in the reward.
    """
    above = subtract(estimator.name, rewards, estimator.group_size)
    token_rewards = place_rewards(np.clip(above, *estimator.reward_range), actions)
    if reference is not None and estimator.kl_coef:
        assert log_probs is not None
        penalty = kl(log_probs, reference, estimator.kl_estimator)
        token_rewards -= estimator.kl_coef * np.where(actions, penalty, 0)
    if estimator.name == "gae":
        assert values is not None
        advantages, returns = gae(token_rewards, values, actions, estimator.gamma, estimator.lambd)
    else:
        advantages = returns = discounted_sums(token_rewards, actions, estimator.gamma)
    if estimator.name in WHITENED:
        advantages = whiten(advantages, actions, std_norm=estimator.std_norm)
    return advantages.astype(np.float32), returns.astype(np.float32)


def place_rewards(scores: Numbers, actions: BoolArray) -> Numbers:
    """A sample's score [B] at its last action; zero elsewhere. [B, T]"""
    after = np.cumsum(actions[:, ::-1], axis=1)[:, ::-1]
    is_last = actions & (after == 1)
    return np.where(is_last, scores[:, None], 0)


def gae(
    rewards: Numbers, values: FloatArray, actions: BoolArray, gamma: float, lambd: float
) -> tuple[Numbers, Numbers]:
    """Generalised advantage estimation (Schulman et al. 2015, equation 16) over action tokens only.

    δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γλ A_{t+1}, R_t = A_t + V_t, where t + 1 is the next
    *action*: a token that the policy did not choose is passed over, not stepped through.
    """
    ahead = _in_order(values, actions)
    deltas = _in_order(rewards, actions) - ahead
    deltas[:-1] += gamma * ahead[1:]
    advantages = _in_place(_sums_of_followers(deltas, gamma * lambd), actions)
    returns = advantages + np.where(actions, values, 0)
    return advantages, returns


def discounted_sums(rewards: Numbers, actions: BoolArray, gamma: float) -> Numbers:
    """R_t = r_t + γ R_{t+1} over action tokens; zero elsewhere."""
    sums = _sums_of_followers(_in_order(rewards, actions), gamma)
    return _in_place(sums, actions)


def _in_order(array: NDArray[np.floating], actions: BoolArray) -> Numbers:
    """[B, T] → [A, B]: row k has each sample's k-th action, and zero where it has fewer.

    Steps then are contiguous rows, and what lies after a sample's end adds nothing to its sums.
    """
    places = _places(actions)
    ordered = np.zeros(places.shape)
    ordered[places] = array[actions]
    return np.ascontiguousarray(ordered.T)


def _in_place(ordered: Numbers, actions: BoolArray) -> Numbers:
    """[A, B] → [B, T]: the inverse of `_in_order`, zero where there is no action."""
    spread = np.zeros(actions.shape)
    spread[actions] = np.ascontiguousarray(ordered.T)[_places(actions)]
    return spread


def _places(actions: BoolArray) -> BoolArray:
    """[B, A] true for as many places as the sample has actions."""
    counts = actions.sum(axis=1)
    places: BoolArray = np.arange(counts.max(initial=0)) < counts[:, None]
    return places


def _sums_of_followers(terms: Numbers, discount: float) -> Numbers:
    """S_k = x_k + discount · S_{k+1}, down the rows of [A, B]."""
    sums = terms.copy()
    for k in reversed(range(len(sums) - 1)):
        sums[k] += discount * sums[k + 1]
    return sums


def whiten(advantages: Numbers, actions: BoolArray, *, std_norm: bool = True) -> Numbers:
    """(A − μ) / √max(var, 1e-8) over all action tokens of the batch; zero elsewhere.

    REINFORCE++ (Hu et al. 2025, section 3.3). Without `std_norm` it is A − μ.
    """
    chosen = advantages[actions]
    if not chosen.size:
        return np.zeros_like(advantages)
    scale = 1 / np.sqrt(max(chosen.var(), 1e-8)) if std_norm else 1.0
    return np.where(actions, (advantages - chosen.mean()) * scale, 0)


Groups = NDArray[np.float64]

EPSILON = 1e-9
"""Keeps a group of equal rewards from 0 / 0."""


def above_mean(rewards: Groups) -> Groups:
    """r − mean: REINFORCE++-baseline (Hu et al. 2025), Dr. GRPO (Liu et al. 2025)."""
    known, _, mean = _moments(rewards)
    return np.where(known, rewards - mean, 0)


def above_batch_mean(rewards: Groups) -> Groups:
    """r − mean of all known rewards, whatever their prompt: for one completion of each prompt."""
    known = ~np.isnan(rewards)
    mean = rewards[known].mean() if known.any() else 0.0
    return np.where(known, rewards - mean, 0)


def above_others(rewards: Groups) -> Groups:
    """r − mean of the others: leave-one-out (Ahmadian et al. 2024, equation 8)."""
    known, count, mean = _moments(rewards)
    # r − (n·mean − r) / (n − 1) = n / (n − 1) · (r − mean)
    return np.where(known, (rewards - mean) * count / np.maximum(count - 1, 1), 0)


def normalised(rewards: Groups) -> Groups:
    """(r − mean) / (std + 1e-9) with ddof 1: GRPO (Shao et al. 2024, section 4.1.2)."""
    known, count, mean = _moments(rewards)
    centred = np.where(known, rewards - mean, 0)
    variance = (centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1)
    normal: Groups = centred / (np.sqrt(variance) + EPSILON)
    return normal


def _moments(rewards: Groups) -> tuple[NDArray[np.bool_], Groups, Groups]:
    """Which rewards are comparable [P, n]; how many of a prompt's are known, and their mean."""
    known = ~np.isnan(rewards)
    count = known.sum(axis=1, keepdims=True)
    mean = np.where(known, rewards, 0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    return known & (count > 1), count.astype(np.float64), mean


BASELINES: dict[str, Callable[[Groups], Groups]] = {
    "rloo": above_others,
    "reinforce_baseline": above_mean,
    "dr_grpo": above_mean,
    "group_norm": normalised,
    "flash_reinforce": above_batch_mean,
}
"""Estimator → its baseline; gae and reinforce have none."""


def subtract(estimator: str, rewards: NDArray[np.floating], size: int) -> Groups:
    """[B] rewards above the estimator's baseline, in groups of `size` neighbours."""
    flat = rewards.astype(np.float64)
    if estimator not in BASELINES:
        return np.nan_to_num(flat)
    return BASELINES[estimator](flat.reshape(-1, size)).reshape(-1)
