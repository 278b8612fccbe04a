"""Rewards → what the completions of a prompt are worth beside each other, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainer.algorithms.own_functions import OwnFunction, described
from trainer.config.estimators import Baseline
from trainer.types import IntArray

Floats = NDArray[np.floating]
"""Inputs: float32 from the workers, or wider numbers."""

Groups = NDArray[np.float64]
"""[P, n]: a row has the completions of one prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """The rewards of a step's B samples, after normalisation and penalties; NaN where unknown."""

    whole: Floats
    """[B]"""
    parts: Floats | None = None
    """[K, B] what each of several reward functions gave, before weights; None: there is one."""
    weights: Sequence[float] = ()
    """[K]"""
    greedy: Floats | None = None
    """[B] the reward of the greedy completion of the sample's prompt, for remax."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """What a baseline is computed from: n completions of each of P prompts."""

    rewards: Groups
    """NaN where unknown."""
    actions: Groups
    """Numbers of actions."""
    parts: Sequence[Groups]
    """[K] what each reward function gave, before weights; of one function its rewards."""
    weights: Sequence[float]
    """[K]"""
    greedy: Groups | None = None
    """[P, n] the reward of the prompt's greedy completion, the same n times; for remax."""

    @classmethod
    def of(cls, rewards: Rewards, actions: IntArray, size: int) -> Completions:
        """Group rewards and `actions` [B], of which `size` neighbours have one prompt."""

        def grouped(flat: Floats) -> Groups:
            return flat.astype(np.float64).reshape(-1, size)

        parts = rewards.whole[None] if rewards.parts is None else rewards.parts
        return cls(
            rewards=grouped(rewards.whole),
            actions=grouped(actions.astype(np.float64)),
            parts=[grouped(part) for part in parts],
            weights=(1.0,) if rewards.parts is None else rewards.weights,
            greedy=None if rewards.greedy is None else grouped(rewards.greedy),
        )


EPSILON = 1e-9
"""Prevents 0 / 0 for a group of equal rewards."""


def above_mean(of: Completions) -> Groups:
    """Return r − mean: REINFORCE++-baseline (Hu et al. 2025), Dr. GRPO (Liu et al. 2025)."""
    known, _, mean = _moments(of.rewards)
    return np.where(known, of.rewards - mean, 0)


def above_length_weighted_mean(of: Completions) -> Groups:
    """Return r − Σ l r / Σ l over the prompt's completions of l tokens: OPO (Hao et al. 2025).

    It is the baseline of least variance if the squared norm of a completion's gradient grows with
    its length.
    """
    known, _, _ = _moments(of.rewards)
    weights = np.where(known, of.actions, 0)
    total = (weights * np.where(known, of.rewards, 0)).sum(axis=1, keepdims=True)
    mean = total / np.maximum(weights.sum(axis=1, keepdims=True), 1)
    return np.where(known, of.rewards - mean, 0)


def above_batch_mean(of: Completions) -> Groups:
    """Return r − mean of the known rewards of all prompts: for one completion a prompt."""
    known = ~np.isnan(of.rewards)
    mean = of.rewards[known].mean() if known.any() else 0.0
    return np.where(known, of.rewards - mean, 0)


def above_greedy(of: Completions) -> Groups:
    """Return r − r of the prompt's greedy completion: ReMax (Li et al. 2023, equation 7)."""
    assert of.greedy is not None
    return np.nan_to_num(of.rewards - of.greedy)


def above_others(of: Completions) -> Groups:
    """Return r − mean of the others: leave-one-out (Ahmadian et al. 2024, equation 8)."""
    known, count, mean = _moments(of.rewards)
    # r − (n·mean − r) / (n − 1) = n / (n − 1) · (r − mean)
    return np.where(known, (of.rewards - mean) * count / np.maximum(count - 1, 1), 0)


def normalised(of: Completions) -> Groups:
    """Return (r − mean) / (std + 1e-9) with ddof 1: GRPO (Shao et al. 2024, section 4.1.2)."""
    known, count, mean = _moments(of.rewards)
    centred = np.where(known, of.rewards - mean, 0)
    variance = (centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1)
    normal: Groups = centred / (np.sqrt(variance) + EPSILON)
    return normal


def normalised_by_parts(of: Completions) -> Groups:
    """Return Σ_k w_k A_k, normalised over the batch; A_k is `normalised` of reward k alone.

    GDPO (Liu et al. 2026, arXiv 2601.05242): a reward of large deviation does not drown the others.
    """
    known, _, _ = _moments(of.rewards)
    each = (normalised(replace(of, rewards=part)) for part in of.parts)
    summed = sum(
        (weight * part for weight, part in zip(of.weights, each, strict=True)),
        start=np.zeros_like(of.rewards),
    )
    # All comparable completions of the batch as one group.
    whole = np.where(known, summed, np.nan).reshape(1, -1)
    return normalised(replace(of, rewards=whole)).reshape(summed.shape)


def _moments(rewards: Groups) -> tuple[NDArray[np.bool_], Groups, Groups]:
    """Return which rewards are comparable [P, n]; each prompt's count of known ones, their mean."""
    known = ~np.isnan(rewards)
    count = known.sum(axis=1, keepdims=True)
    mean = np.where(known, rewards, 0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    return known & (count > 1), count.astype(np.float64), mean


BASELINES: dict[Baseline, Callable[[Completions], Groups]] = {
    Baseline.GROUP_MEAN: above_mean,
    Baseline.OTHERS_MEAN: above_others,
    Baseline.GROUP_NORM: normalised,
    Baseline.LENGTH_WEIGHTED_MEAN: above_length_weighted_mean,
    Baseline.BATCH_MEAN: above_batch_mean,
    Baseline.GREEDY: above_greedy,
    Baseline.EACH_GROUP_NORM: normalised_by_parts,
}


def subtract(
    baseline: Baseline,
    rewards: Rewards,
    actions: IntArray,
    size: int,
    own: OwnFunction | None = None,
) -> Groups:
    """Return [B] rewards minus the estimator's baseline, in groups of `size` neighbours.

    `own`: a user's estimator. Raises UserFormulaError if it fails.
    """
    if baseline is Baseline.NONE:
        return np.nan_to_num(rewards.whole.astype(np.float64))
    of = Completions.of(rewards, actions, size)
    worth = own_estimate(own, of) if own else BASELINES[baseline](of)
    return worth.reshape(-1)


def own_estimate(own: OwnFunction, of: Completions) -> Groups:
    """Return [P, n] what a user's estimator returns; 0 where the reward is unknown.

    Raises UserFormulaError if it is not that.
    """
    answer = own.call(of)
    try:
        found = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError):
        raise own.wrong(f"returned {described(answer)}, not an array") from None
    if found.shape != of.rewards.shape:
        raise own.wrong(
            f"returned an array of shape {found.shape} for rewards of shape {of.rewards.shape}"
        )
    known = ~np.isnan(of.rewards)
    if bad := np.count_nonzero(known & ~np.isfinite(found)):
        first = found[known & ~np.isfinite(found)][0]
        raise own.wrong(f"returned {first} for {bad} of {known.sum()} known rewards")
    return np.where(known, found, 0)
