"""What no released wheel computes, against the papers' equations written out in loops."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from tests.oracles.agreement import given, same
from tests.oracles.batches import Batch, batches
from tests.support import padded_advantages
from tests.support.padded_advantages import PaddedInputs
from trainer.algorithms.reward_shaping import LengthPenalties, RunningMoments
from trainer.config.options.algorithm import AdvantageSettings, ShapingSettings

DISCOUNTS = st.sampled_from([0.0, 0.5, 0.97, 1.0])


@given(batches(), DISCOUNTS, DISCOUNTS)
def test_gae_over_several_turns_is_schulman_2015_equation_16(
    batch: Batch, gamma: float, lambd: float
) -> None:
    """A_t = Σ_k (γλ)^k δ_{t+k} with δ_t = r_t + γ V_{t+1} − V_t, where t counts actions.

    Schulman et al. 2017, equations 11 and 12, is the same sum ending with the episode.
    """
    settings = AdvantageSettings(
        estimator="gae", gamma=gamma, lambd=lambd, reward_clip_range=(-1e9, 1e9), no_std_norm=True
    )
    plain, returns = padded_advantages.estimate(
        settings,
        PaddedInputs(rewards=batch.rewards, action_mask=batch.action_mask, values=batch.values),
    )
    expected = np.zeros(batch.action_mask.shape)
    for row, reward in enumerate(batch.rewards):
        times = np.flatnonzero(batch.action_mask[row])
        values = [float(v) for v in batch.values[row, times]] + [0.0]
        rewards = [0.0] * (len(times) - 1) + [float(reward)]
        deltas = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(len(times))]
        for t, time in enumerate(times):
            terms = [(gamma * lambd) ** k * delta for k, delta in enumerate(deltas[t:])]
            expected[row, time] = math.fsum(terms)
    same(returns, np.where(batch.action_mask, expected + batch.values, 0))
    mean = expected[batch.action_mask].mean()
    same(plain, np.where(batch.action_mask, expected - mean, 0))


@given(batches(), DISCOUNTS)
def test_returns_over_several_turns_are_williams_1992_s_sums(batch: Batch, gamma: float) -> None:
    """R_t = Σ_k γ^k r_{t+k} over actions, whatever stands between them."""
    settings = AdvantageSettings(
        estimator="reinforce", gamma=gamma, reward_clip_range=(-1e9, 1e9), no_std_norm=True
    )
    _, returns = padded_advantages.estimate(
        settings, PaddedInputs(rewards=batch.rewards, action_mask=batch.action_mask)
    )
    for row, reward in enumerate(batch.rewards):
        times = np.flatnonzero(batch.action_mask[row])
        following = [gamma ** (len(times) - 1 - t) * reward for t in range(len(times))]
        same(returns[row, times], following)


@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 20))
def test_the_overlong_penalty_is_dapo_s_equation_13(length: int, cache: int, expected: int) -> None:
    """Yu et al. 2025; L_max = expected + L_cache, and no completion is longer than L_max."""
    longest = expected + cache
    length = min(length, longest)
    if length <= longest - cache:
        penalty = 0.0
    elif length <= longest:
        penalty = ((longest - cache) - length) / cache
    penalties = LengthPenalties(longest, ShapingSettings(overlong_buffer_len=cache))
    shaped = penalties.apply(np.zeros(1, np.float32), np.array([length]), np.array([True]))
    same(shaped, [penalty])


@given(st.lists(st.lists(st.floats(-100, 100) | st.just(math.nan), max_size=6), max_size=6))
def test_running_moments_are_those_of_all_rewards_so_far(steps: list[list[float]]) -> None:
    """Chan et al. 1979, equation 2.1: as if the moments were taken at once."""
    moments = RunningMoments()
    for rewards in steps:
        moments = moments.including(np.array(rewards))
    known = [reward for rewards in steps for reward in rewards if not math.isnan(reward)]
    assert moments.count == len(known)
    if known:
        same(moments.mean, math.fsum(known) / len(known))
        squares = math.fsum((reward - math.fsum(known) / len(known)) ** 2 for reward in known)
        same(moments.squares, squares)
