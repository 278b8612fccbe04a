"""What a reward is compared with, group by group, against the formulas in Python's floats."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from trainer.algorithms import advantages

UNKNOWN = float("nan")
REWARDS = [1.0, 0.0, 0.5, 4.0, 2.0, 3.0]


def above(estimator: str, rewards: list[float], size: int = 3) -> list[float]:
    values = advantages.subtract(estimator, np.array(rewards, dtype=np.float32), size)
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


@pytest.mark.parametrize("estimator", ["gae", "reinforce"])
def test_gae_and_reinforce_have_no_baseline(estimator: str) -> None:
    assert above(estimator, [2.0, UNKNOWN, -1.0]) == [2.0, 0.0, -1.0]


def test_flash_reinforce_compares_with_the_whole_batch() -> None:
    got = above("flash_reinforce", [1.0, UNKNOWN, 0.5, 4.0, 2.0, 2.5])
    assert got == pytest.approx([-1.0, 0.0, -1.5, 2.0, 0.0, 0.5])


@pytest.mark.parametrize("estimator", sorted(set(advantages.BASELINES) - {"flash_reinforce"}))
def test_an_unknown_reward_takes_no_part_in_its_groups_baseline(estimator: str) -> None:
    with_unknown = above(estimator, [1.0, UNKNOWN, 0.0, 7.0, UNKNOWN, UNKNOWN])
    alone = above(estimator, [1.0, 0.0], size=2)
    assert with_unknown == pytest.approx([alone[0], 0.0, alone[1], 0.0, 0.0, 0.0])


@pytest.mark.parametrize("estimator", sorted(advantages.BASELINES))
def test_a_group_of_equal_rewards_teaches_nothing(estimator: str) -> None:
    assert above(estimator, [0.25] * 4, size=4) == [0.0] * 4
