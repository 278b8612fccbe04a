"""Advantages of padded rows [B, T], as the tests and other libraries write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.algorithms import advantages
from trainer.algorithms.advantages import AdvantageInputs, Floats, Moments, Numbers, Rewards
from trainer.config.options.algorithm import AdvantageSettings
from trainer.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class PaddedInputs:
    rewards: Floats
    action_mask: BoolArray
    old_log_probs: Floats | None = None
    ref_log_probs: Floats | None = None
    values: Floats | None = None
    turn_rewards: Floats | None = None
    group_size: int = 1
    kl_coef: float = 0.0
    kl_estimator: str = "k1"
    parts: Floats | None = None
    weights: Sequence[float] = ()
    greedy: Floats | None = None


def estimate(settings: AdvantageSettings, padded: PaddedInputs) -> tuple[FloatArray, FloatArray]:
    """Return advantages, whitened if the settings say so, and returns; zero at other tokens."""
    mask = padded.action_mask
    rewards = Rewards(
        whole=padded.rewards, parts=padded.parts, weights=padded.weights, greedy=padded.greedy
    )
    inputs = AdvantageInputs(
        scores=advantages.above_baseline(settings, rewards, counted(mask), padded.group_size),
        actions=counted(mask),
        old_log_probs=flat(padded.old_log_probs, mask),
        ref_log_probs=flat(padded.ref_log_probs, mask),
        values=flat(padded.values, mask),
        turn_rewards=flat(padded.turn_rewards, mask),
        kl_coef=padded.kl_coef,
        kl_estimator=padded.kl_estimator,
    )
    found, returns = advantages.estimate(settings, inputs)
    if settings.whitens:
        known = advantages.of_known(inputs.scores, inputs.actions)
        moments = Moments.of(found[known])
        found = advantages.whiten(found, moments, std_norm=not settings.no_std_norm)
    return spread(found, mask).astype(np.float32), spread(returns, mask).astype(np.float32)


def gae(
    rewards: Floats, values: Floats, mask: BoolArray, gamma: float, lambd: float
) -> tuple[Numbers, Numbers]:
    found, returns = advantages.gae(rewards[mask], values[mask], counted(mask), gamma, lambd)
    return spread(found, mask), spread(returns, mask)


def discounted_sums(rewards: Floats, mask: BoolArray, gamma: float) -> Numbers:
    return spread(advantages.discounted_sums(rewards[mask], counted(mask), gamma), mask)


def counted(mask: BoolArray) -> IntArray:
    counts: IntArray = mask.sum(axis=1)
    return counts


def flat(array: Floats | None, mask: BoolArray) -> Floats | None:
    return None if array is None else array[mask]


def spread(array: Numbers, mask: BoolArray) -> NDArray[np.float64]:
    whole = np.zeros(mask.shape)
    whole[mask] = array
    return whole
