"""What a sample's reward is compared with: other completions, of its prompt or of the batch.

Each function takes rewards [P, n] (P prompts, n completions; NaN: unknown) and returns what is
left of them above the baseline, [P, n] float64. An unknown reward takes part in nothing, and a
sample with no other known one beside it has nothing to be compared with: both become 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
