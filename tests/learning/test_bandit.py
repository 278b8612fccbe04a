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

import pytest

from tests.learning.algorithms import ALGORITHMS
from tests.learning.episode import Goal, learn
from tests.trainer.harness import Tiny, share_of

pytestmark = pytest.mark.learning

GOAL = Goal(reward=0.9, window=128, budget=1536)
SETTINGS = {
    "rollout_batch_size": 8,
    "n_samples_per_prompt": 8,
    "micro_rollout_batch_size": 64,
    "train_batch_size": 32,
    "micro_train_batch_size": 32,
    "max_epochs": 2,
    "max_steps": 100,
    "generate_max_len": 8,
    "actor_learning_rate": 1e-2,
    "critic_learning_rate": 1e-2,
    "lr_scheduler": "constant",
    "lr_warmup_ratio": 0,
}
OF_DAPO = {"overlong_buffer_len": 4}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_digit_that_pays_is_found(algorithm: str, seed: int, tiny: Tiny, run_dir: Path) -> None:
    penalty = OF_DAPO if algorithm == "DAPO" else {}
    config = tiny.config(run_dir, **SETTINGS | ALGORITHMS[algorithm] | penalty, seed=seed)
    course = learn(config, share_of("1"), GOAL)
    assert course.first < 0.3
    assert course.solved, f"{course.latest:.2f} after {len(course.rewards)} samples"
