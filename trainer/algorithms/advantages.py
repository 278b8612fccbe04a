"""Rewards → advantages and returns, in numpy.

The driver compares the rewards of all samples (`scores`): `BASELINES` has what is subtracted from
each. Each rank then estimates the advantages of its own actions, and whitens them by the moments of
all ranks. Arrays [N] have the actions of all samples in order, `actions` [B] how many each sample
has. A sample whose score is NaN teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainer.algorithms.kl import kl
from trainer.algorithms.own_functions import OwnFunction, described
from trainer.config.estimators import Baseline
from trainer.config.options.algorithm import AdvantageSettings
from trainer.types import IntArray, sums

Floats = NDArray[np.floating]
"""Inputs: float32 from the workers, or wider numbers."""

Numbers = NDArray[np.float64]
"""Sums are computed in float64; the caller rounds at the end."""

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
    above = own_estimate(own, of) if own else BASELINES[baseline](of)
    return above.reshape(-1)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """What advantages are estimated from."""

    scores: Floats
    """[B] of `above_baseline`."""
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


def above_baseline(
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
