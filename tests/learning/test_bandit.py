"""A bandit with a known optimum: the reward is the share of one digit, and 1 is the most.

The model's weights are random: at first it writes the digit as often as any other token.

Samples until the latest 128 have a mean of 0.9, where the budget is 1536 (PyTorch 2.13 on a CPU):

=====================  ======  ======  ======
algorithm              seed 1  seed 2  seed 3
=====================  ======  ======  ======
PPO                       640     704     640
REINFORCE++               640     704     640
REINFORCE                 640     704     576
REINFORCE++-baseline      640     704     640
RLOO                      704     704     768
GRPO                      640     640     640
Dr. GRPO                  640     704     576
GSPO                      512     512     512
DAPO                      936     904     920
=====================  ======  ======  ======
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from tests.learning.algorithms import ALGORITHMS
from tests.learning.episode import SEEDS, Goal, learn
from tests.support.tiny_run import Tiny, metric_rows, share_of, train

pytestmark = [pytest.mark.learning, pytest.mark.timeout(400)]

GOAL = Goal(reward=0.9, window=128, budget=1536)
LONGEST, BUFFER = 8, 4
"""Tokens of a completion; the last of them, that cost reward where there is a penalty."""
SETTINGS = {
    "rollout_batch_size": 8,
    "n_samples_per_prompt": 8,
    "micro_rollout_batch_size": 64,
    "train_batch_size": 32,
    "micro_train_batch_size": 32,
    "max_epochs": 2,
    "max_steps": 100,
    "generate_max_len": LONGEST,
    "actor_learning_rate": 1e-2,
    "critic_learning_rate": 1e-2,
    "lr_scheduler": "constant",
    "lr_warmup_ratio": 0,
}
PARTS = {"DAPO": {"overlong_buffer_len": BUFFER}}
"""What an algorithm sets besides, on this task."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_digit_that_pays_is_found(algorithm: str, seed: int, tiny: Tiny, run_dir: Path) -> None:
    flags = SETTINGS | ALGORITHMS[algorithm] | PARTS.get(algorithm, {})
    course = learn(tiny.config(run_dir, **flags, seed=seed), share_of("1"), GOAL)
    assert course.first < 0.3
    assert course.solved, f"{course.latest:.2f} after {len(course.rewards)} samples"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_critic_comes_to_know_what_the_policy_earns(
    seed: int, tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, **SETTINGS | {"max_steps": 24}, seed=seed)
    train(config, share_of("1"))
    earned, known = (
        fmean(row[f"train/{name}"] for row in metric_rows(config)[-4:])
        for name in ("return", "values")
    )
    assert earned > 0.7
    assert known == pytest.approx(earned, abs=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_completions_become_short_where_long_ones_cost(
    seed: int, tiny: Tiny, run_dir: Path
) -> None:
    """DAPO's penalty: all ones earn the same share, but only the first four tokens are free."""
    lengths = {}
    for name in ("GRPO", "DAPO"):
        flags = SETTINGS | ALGORITHMS[name] | PARTS.get(name, {})
        config = tiny.config(run_dir / name, **flags, seed=seed)
        assert learn(config, share_of("1"), GOAL).solved
        lengths[name] = metric_rows(config)[-1]["train/response_length"]
    assert lengths["DAPO"] < LONGEST - BUFFER < lengths["GRPO"]
