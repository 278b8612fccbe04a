"""Rewards → advantages and returns, in numpy.

The driver compares the rewards of all samples (`scores`). Each rank then estimates the advantages
of its own actions, and whitens them by the moments of all ranks. Arrays [N] have the actions of all
samples in order, `actions` [B] how many each sample has. A sample whose score is NaN teaches
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.algorithms.baselines import Floats, Rewards, subtract
from trainer.algorithms.kl import kl
from trainer.algorithms.own_functions import OwnFunction
from trainer.config.options.algorithm import AdvantageSettings
from trainer.types import IntArray, sums

Numbers = NDArray[np.float64]
"""Sums are computed in float64; the caller rounds at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """What advantages are estimated from."""

    scores: Floats
    """[B] of `scores`."""
    actions: IntArray
    """[B]"""
    old_log_probs: Floats | None = None
    """[N]; needed if the KL is in the reward, as is `ref_log_probs`."""
    ref_log_probs: Floats | None = None
    values: Floats | None = None
    """[N]; needed by gae."""
    turn_rewards: Floats | None = None
    """[N] parts of rewards that belong to the last token of a turn; None: there are none."""
    kl_coef: float = 0.0
    """Weight of the KL in the reward; 0 if the KL is in the loss."""
    kl_estimator: str = "k1"


def scores(
    settings: AdvantageSettings,
    rewards: Rewards,
    actions: IntArray,
    group_size: int,
    own: OwnFunction | None = None,
) -> Numbers:
    """Return [B] the clipped difference of rewards to their baseline; NaN where unknown.

    `actions` [B]: their numbers of actions. `group_size`: number of completions of one prompt,
    which are neighbours. `own`: a user's estimator. Raises UserFormulaError if it fails.
    """
    above = subtract(settings.entry.baseline, rewards, actions, group_size, own)
    return np.where(np.isnan(rewards.whole), np.nan, np.clip(above, *settings.reward_clip_range))


def estimate(settings: AdvantageSettings, inputs: AdvantageInputs) -> tuple[Numbers, Numbers]:
    """Return advantages before whitening, and returns, both [N]; zero in samples without a score.

    The order is OpenRLHF's: group baseline, clip, token rewards with KL, estimator, whitening.
    """
    actions = inputs.actions
    token_rewards = place_rewards(np.nan_to_num(inputs.scores), actions)
    if inputs.turn_rewards is not None and not settings.entry.rescales:
        total = sums(inputs.turn_rewards, actions)
        token_rewards += inputs.turn_rewards - place_rewards(total, actions)
    if inputs.ref_log_probs is not None and inputs.kl_coef:
        assert inputs.old_log_probs is not None
        token_rewards -= inputs.kl_coef * kl(
            inputs.old_log_probs, inputs.ref_log_probs, inputs.kl_estimator
        )
    if settings.estimator == "gae":
        assert inputs.values is not None
        discounts = settings.gamma, settings.lambd
        advantages, returns = gae(token_rewards, inputs.values, actions, *discounts)
    else:
        advantages = returns = discounted_sums(token_rewards, actions, settings.gamma)
    known = of_known(inputs.scores, actions)
    return np.where(known, advantages, 0), np.where(known, returns, 0)


def of_known(scores: Floats, actions: IntArray) -> NDArray[np.bool_]:
    """Return [N] whether each action is of a sample with a score."""
    return np.repeat(~np.isnan(scores), actions)


def place_rewards(scores: Numbers, actions: IntArray) -> Numbers:
    """Return [N] each sample's score [B] at its last action; zero elsewhere."""
    placed = np.zeros(int(actions.sum()))
    acting = actions > 0
    placed[np.cumsum(actions)[acting] - 1] = scores[acting]
    return placed


def gae(
    rewards: Floats, values: Floats, actions: IntArray, gamma: float, lambd: float
) -> tuple[Numbers, Numbers]:
    """Return generalised advantage estimates (Schulman et al. 2015, equation 16) and returns.

    δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γλ A_{t+1}, R_t = A_t + V_t, where t + 1 is the next
    *action*: tokens that the policy did not choose are skipped.
    """
    ahead = _in_steps(values, actions)
    deltas = _in_steps(rewards, actions) - ahead
    deltas[:-1] += gamma * ahead[1:]
    advantages = _end_to_end(_sums_of_followers(deltas, gamma * lambd), actions)
    return advantages, advantages + values


def discounted_sums(rewards: Floats, actions: IntArray, gamma: float) -> Numbers:
    """Return R_t = r_t + γ R_{t+1} over each sample's actions."""
    return _end_to_end(_sums_of_followers(_in_steps(rewards, actions), gamma), actions)


def _in_steps(array: Floats, actions: IntArray) -> Numbers:
    """[N] → [A, B]: row k has each sample's k-th action, zero for samples with fewer.

    Steps are then contiguous rows, and nothing after a sample's end enters its sums.
    """
    places = _places(actions)
    ordered = np.zeros(places.shape)
    ordered[places] = array
    return np.ascontiguousarray(ordered.T)


def _end_to_end(ordered: Numbers, actions: IntArray) -> Numbers:
    """[A, B] → [N]: the inverse of `_in_steps`."""
    return np.ascontiguousarray(ordered.T)[_places(actions)]


def _places(actions: IntArray) -> NDArray[np.bool_]:
    """Return [B, A] true in the first k places of a sample with k actions."""
    places: NDArray[np.bool_] = np.arange(actions.max(initial=0)) < actions[:, None]
    return places


def _sums_of_followers(terms: Numbers, discount: float) -> Numbers:
    """Return S_k = x_k + discount · S_{k+1}, down the rows of [A, B]."""
    sums = terms.copy()
    for k in reversed(range(len(sums) - 1)):
        sums[k] += discount * sums[k + 1]
    return sums


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of some numbers."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, numbers: Numbers) -> Moments:
        if not numbers.size:
            return cls()
        mean = float(numbers.mean())
        return cls(numbers.size, mean, float(((numbers - mean) ** 2).sum()))

    @classmethod
    def of_all(cls, parts: Sequence[Moments]) -> Moments:
        """Return the moments of the parts' numbers together (Chan et al. 1979, equation 2.1)."""
        count = sum(part.count for part in parts)
        mean = sum(part.count * part.mean for part in parts) / max(1, count)
        return cls(count, mean, sum(p.squares + p.count * (p.mean - mean) ** 2 for p in parts))


def whiten(advantages: Numbers, of_all: Moments, *, std_norm: bool = True) -> Numbers:
    """Return (A − μ) / √max(var, 1e-8) by the moments of the whole batch's actions.

    REINFORCE++ (Hu et al. 2025, section 3.3). Without `std_norm` the result is A − μ.
    """
    variance = of_all.squares / max(1, of_all.count)
    scale = 1 / np.sqrt(max(variance, 1e-8)) if std_norm else 1.0
    whitened: Numbers = (advantages - of_all.mean) * scale
    return whitened
