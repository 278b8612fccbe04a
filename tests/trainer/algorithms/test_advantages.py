"""Advantages and baselines against the papers' sums, written out in Python's floats."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import padded_advantages
from tests.support.padded_advantages import PaddedInputs
from trainer.algorithms import advantages
from trainer.algorithms.advantages import Moments, Rewards, subtract
from trainer.config.estimators import ESTIMATORS
from trainer.config.options.algorithm import AdvantageSettings
from trainer.types import BoolArray, FloatArray


def gae_by_hand(
    rewards: list[float], values: list[float], gamma: float, lambd: float
) -> list[float]:
    """A_t = Σ_k (γλ)^k δ_{t+k}, over one sample's action tokens only."""
    following = [*values, 0.0][1:]
    deltas = [r + gamma * n - v for r, v, n in zip(rewards, values, following, strict=True)]
    return [
        sum((gamma * lambd) ** k * delta for k, delta in enumerate(deltas[t:]))
        for t in range(len(deltas))
    ]


@st.composite
def batches(draw: st.DrawFn) -> tuple[FloatArray, FloatArray, BoolArray, float, float]:
    shape = (draw(st.integers(1, 4)), draw(st.integers(1, 7)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return (
        rng.normal(size=shape).astype(np.float32),
        rng.normal(size=shape).astype(np.float32),
        rng.random(shape) < 0.6,
        draw(st.sampled_from([0.0, 0.9, 1.0])),
        draw(st.sampled_from([0.0, 0.95, 1.0])),
    )


@settings(max_examples=60)
@given(batches())
def test_gae_equals_its_definition_and_passes_over_what_the_policy_did_not_choose(
    batch: tuple[FloatArray, FloatArray, BoolArray, float, float],
) -> None:
    rewards, values, action_mask, gamma, lambd = batch
    got, returns = padded_advantages.gae(rewards, values, action_mask, gamma, lambd)
    for row, chosen in enumerate(action_mask):
        expected = gae_by_hand(
            rewards[row, chosen].tolist(), values[row, chosen].tolist(), gamma, lambd
        )
        assert got[row, chosen] == pytest.approx(expected, abs=1e-5)
        assert returns[row, chosen] == pytest.approx(expected + values[row, chosen], abs=1e-5)
    assert not got[~action_mask].any()
    assert not returns[~action_mask].any()


def test_what_a_tool_said_between_two_turns_changes_no_advantage() -> None:
    """The critic has an opinion on observations too, but nobody acts there: a step through one
    would bring its value into the next turn's advantage, discounted once too often."""
    turn = np.array([[True, True, True, True]])
    rewards = np.array([[0.0, 0.0, 0.0, 1.0]], dtype=np.float32)
    values = np.array([[0.3, 0.4, 0.6, 0.8]], dtype=np.float32)
    said = np.full((1, 3), 50.0, dtype=np.float32)

    def with_observation(turns: np.ndarray, observation: np.ndarray) -> np.ndarray:
        return np.concatenate([turns[:, :2], observation, turns[:, 2:]], axis=1)

    action_mask = with_observation(turn, np.zeros((1, 3), dtype=np.bool_))
    got = padded_advantages.gae(
        with_observation(rewards, said), with_observation(values, said), action_mask, 0.9, 0.8
    )
    expected = padded_advantages.gae(rewards, values, turn, 0.9, 0.8)
    for through, without in zip(got, expected, strict=True):
        assert through[action_mask].tolist() == without[turn].tolist()
        assert not through[~action_mask].any()


def test_a_batch_without_any_action_has_no_advantages() -> None:
    nothing = np.zeros((2, 3), dtype=np.bool_)
    numbers = np.ones((2, 3), dtype=np.float32)
    assert not np.any(padded_advantages.gae(numbers, numbers, nothing, 0.9, 0.8))
    assert not padded_advantages.discounted_sums(numbers, nothing, 0.9).any()


@settings(max_examples=60)
@given(batches())
def test_discounted_sums_are_those_of_the_actions_that_follow(
    batch: tuple[FloatArray, FloatArray, BoolArray, float, float],
) -> None:
    rewards, _, action_mask, gamma, _ = batch
    got = padded_advantages.discounted_sums(rewards, action_mask, gamma)
    for row, chosen in enumerate(action_mask):
        # Without values and with λ = 1, GAE is the discounted sum of rewards.
        mine = rewards[row, chosen].tolist()
        assert got[row, chosen] == pytest.approx(
            gae_by_hand(mine, [0.0] * len(mine), gamma, 1.0), abs=1e-5
        )
    assert not got[~action_mask].any()


def test_the_reward_arrives_at_the_last_action() -> None:
    placed = advantages.place_rewards(np.array([2.0, 7.0, 3.0, 5.0]), np.array([2, 0, 3, 1]))
    assert placed.tolist() == [0, 2, 0, 0, 3, 5]


def test_whitening_by_the_moments_of_all_ranks_is_whitening_at_once() -> None:
    numbers = np.random.default_rng(0).normal(3, 2, 30)
    of_ranks = [Moments.of(part) for part in (numbers[:4], numbers[:0], numbers[4:])]
    white = advantages.whiten(numbers, Moments.of_all(of_ranks))
    assert white.mean() == pytest.approx(0, abs=1e-12)
    assert white.std() == pytest.approx(1, abs=1e-12)
    centred = advantages.whiten(numbers, Moments.of_all(of_ranks), std_norm=False)
    assert centred == pytest.approx(numbers - numbers.mean(), abs=1e-12)
    assert not advantages.whiten(numbers[:0], Moments.of_all([])).size


def test_kl_in_the_reward_is_charged_token_by_token() -> None:
    action_mask = np.array([[False, True, True]])
    log_probs = np.array([[0.0, -1.0, -2.0]], dtype=np.float32)
    reference = np.array([[0.0, -1.5, -1.0]], dtype=np.float32)
    _, returns = padded_advantages.estimate(
        AdvantageSettings(),
        PaddedInputs(
            rewards=np.array([1.0], dtype=np.float32),
            action_mask=action_mask,
            old_log_probs=log_probs,
            ref_log_probs=reference,
            values=np.zeros((1, 3), dtype=np.float32),
            kl_coef=0.1,
        ),
    )
    # k1 = log π − log π_ref: 0.5, then −1.0.
    assert returns[0] == pytest.approx([0.0, 1.0 - 0.1 * 0.5 + 0.1 * 1.0, 1.0 + 0.1 * 1.0])


def test_rewards_are_clipped_to_their_range() -> None:
    _, returns = padded_advantages.estimate(
        AdvantageSettings(reward_clip_range=(-1.0, 2.0)),
        PaddedInputs(
            rewards=np.array([50.0, -50.0], dtype=np.float32),
            action_mask=np.array([[True], [True]]),
            old_log_probs=np.zeros((2, 1), dtype=np.float32),
            values=np.zeros((2, 1), dtype=np.float32),
        ),
    )
    assert returns[:, 0].tolist() == [2.0, -1.0]


def test_a_sample_without_a_reward_changes_no_other_samples_advantage() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(4, 5)).astype(np.float32)
    rewards = np.array([1.0, np.nan, 0.0, 0.5], dtype=np.float32)
    known = ~np.isnan(rewards)
    action_mask = np.ones((4, 5), dtype=np.bool_) & known[:, None]
    settings = AdvantageSettings()
    zeros = np.zeros((4, 5), dtype=np.float32)
    got, _ = padded_advantages.estimate(
        settings,
        PaddedInputs(rewards=rewards, action_mask=action_mask, old_log_probs=zeros, values=values),
    )
    alone, _ = padded_advantages.estimate(
        settings,
        PaddedInputs(
            rewards=rewards[known],
            action_mask=action_mask[known],
            old_log_probs=zeros[known],
            values=values[known],
        ),
    )
    assert np.array_equal(got[known], alone)
    assert not got[~known].any()


UNKNOWN = float("nan")
COMPARES_GROUP = [name for name, about in ESTIMATORS.items() if about.compares_group]
REWARDS = [1.0, 0.0, 0.5, 4.0, 2.0, 3.0]


def above(
    estimator: str, rewards: list[float], size: int = 3, actions: list[int] | None = None
) -> list[float]:
    lengths = np.array(actions or [1] * len(rewards))
    given = Rewards(whole=np.array(rewards, dtype=np.float32))
    values = subtract(ESTIMATORS[estimator].baseline, given, lengths, size)
    return [float(value) for value in values]


def test_group_norm_compares_each_prompts_samples_by_their_sample_deviation() -> None:
    got = above("group_norm", REWARDS)
    for start in (0, 3):
        group = REWARDS[start : start + 3]
        expected = [(r - statistics.mean(group)) / statistics.stdev(group) for r in group]
        assert got[start : start + 3] == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ["reinforce_baseline", "dr_grpo"])
def test_the_mean_of_the_prompts_samples_is_the_baseline(estimator: str) -> None:
    assert above(estimator, REWARDS) == pytest.approx([0.5, -0.5, 0.0, 1.0, -1.0, 0.0])


def test_rloo_leaves_the_sample_itself_out_of_its_baseline() -> None:
    assert above("rloo", REWARDS) == pytest.approx([0.75, -0.75, 0.0, 1.5, -1.5, 0.0])


def test_opo_weights_the_known_rewards_of_a_prompt_by_their_tokens() -> None:
    got = above("opo", [1.0, UNKNOWN, 0.5, 4.0, 2.0, 3.0], actions=[1, 9, 3, 2, 0, 2])
    first, second = (1 * 1.0 + 3 * 0.5) / 4, (2 * 4.0 + 2 * 3.0) / 4
    expected = [1 - first, 0.0, 0.5 - first, 4 - second, 2 - second, 3 - second]
    assert got == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ["gae", "reinforce"])
def test_gae_and_reinforce_have_no_baseline(estimator: str) -> None:
    assert above(estimator, [2.0, UNKNOWN, -1.0]) == [2.0, 0.0, -1.0]


def test_flash_reinforce_compares_with_the_whole_batch() -> None:
    got = above("flash_reinforce", [1.0, UNKNOWN, 0.5, 4.0, 2.0, 2.5])
    assert got == pytest.approx([-1.0, 0.0, -1.5, 2.0, 0.0, 0.5])


@pytest.mark.parametrize("estimator", COMPARES_GROUP)
def test_an_unknown_reward_takes_no_part_in_its_groups_baseline(estimator: str) -> None:
    with_unknown = above(estimator, [1.0, UNKNOWN, 0.0, 7.0, UNKNOWN, UNKNOWN])
    alone = above(estimator, [1.0, 0.0], size=2)
    assert with_unknown == pytest.approx([alone[0], 0.0, alone[1], 0.0, 0.0, 0.0])


@pytest.mark.parametrize("estimator", [*COMPARES_GROUP, "flash_reinforce"])
def test_a_group_of_equal_rewards_teaches_nothing(estimator: str) -> None:
    assert above(estimator, [0.25] * 4, size=4) == [0.0] * 4


TWO_TURNS = np.array([[False, True, True, False, True, True]])
OF_TURNS = np.array([[0, 0, 0.5, 0, 0, 0.25]], dtype=np.float32)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("reinforce", [0, 2, 2, 0, 1.5, 1.5]),  # 0.5 for the first turn, 1.5 for the second
        ("group_norm", [0, 0, 0, 0, 0, 0]),  # one scale for whole samples: nothing moves
    ],
)
def test_rewards_of_turns_belong_to_the_last_action_of_their_turn(
    estimator: str, expected: list[float]
) -> None:
    inputs = PaddedInputs(
        rewards=np.array([2.0], dtype=np.float32), action_mask=TWO_TURNS, turn_rewards=OF_TURNS
    )
    settings = AdvantageSettings(estimator=estimator)
    _, returns = padded_advantages.estimate(settings, inputs)
    assert returns[0] == pytest.approx(expected)


def test_gae_passes_rewards_of_turns_over_observations() -> None:
    values = np.array([[9, 1, 2, 9, 3, 4]], dtype=np.float32)
    inputs = PaddedInputs(
        rewards=np.array([2.0], dtype=np.float32),
        action_mask=TWO_TURNS,
        values=values,
        turn_rewards=OF_TURNS,
    )
    settings = AdvantageSettings(estimator="gae", gamma=0.9, lambd=0.8)
    _, returns = padded_advantages.estimate(settings, inputs)
    by_hand = gae_by_hand([0, 0.5, 0, 1.5], [1, 2, 3, 4], 0.9, 0.8)
    assert returns[0, TWO_TURNS[0]] == pytest.approx(
        [a + v for a, v in zip(by_hand, [1, 2, 3, 4], strict=True)], abs=1e-5
    )


def test_gdpo_gives_each_reward_the_same_say_whatever_its_scale() -> None:
    """Summed first, the large reward alone would decide."""
    small, large = [1.0, 0.0, 0.0, 1.0], [0.0, 1000.0, 0.0, 1000.0]
    parts = np.array([small, large])
    given = Rewards(whole=parts.sum(axis=0), parts=parts, weights=(1.0, 1.0))
    values = subtract(ESTIMATORS["gdpo"].baseline, given, np.ones(4, np.int64), 4)
    root = 1.5**0.5
    assert values.tolist() == pytest.approx([0, 0, -root, root], abs=1e-6)


def test_gdpo_leaves_unknown_rewards_and_single_ones_out_of_the_batch() -> None:
    whole = np.array([1.0, 0.0, UNKNOWN, 5.0, UNKNOWN, UNKNOWN])
    given = Rewards(whole=whole, parts=whole[None], weights=(2.0,))
    values = subtract(ESTIMATORS["gdpo"].baseline, given, np.ones(6, np.int64), 3)
    root = 1 / 2**0.5
    assert values.tolist() == pytest.approx([root, -root, 0, 0, 0, 0])


def test_remax_has_no_advantage_where_the_greedy_reward_is_unknown() -> None:
    given = Rewards(
        whole=np.array([1.0, UNKNOWN, 3.0, 4.0]), greedy=np.array([0.5, 0.5, UNKNOWN, UNKNOWN])
    )
    values = subtract(ESTIMATORS["remax"].baseline, given, np.ones(4, np.int64), 2)
    assert values.tolist() == [0.5, 0, 0, 0]
