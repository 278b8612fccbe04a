"""A task that only seeing solves: "0" for a dark square, "1" for a bright one.

The rows' texts are the same, so that a policy which does not see is right in half of the samples
at most. Mean of the latest 256 samples; the budget is 6,144.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.learning.episode import SEEDS, Goal, learn
from tests.support import colours

pytestmark = [pytest.mark.learning, pytest.mark.timeout(400)]

GOAL = Goal(reward=0.9, window=256, budget=6144)
SETTINGS = {
    **colours.FLAGS,
    "rollout_batch_size": 8,
    "n_samples_per_prompt": 8,
    "micro_rollout_batch_size": 64,
    "train_batch_size": 64,
    "micro_train_batch_size": 64,
    "max_steps": 120,
    "actor_learning_rate": 3e-3,
    "lr_scheduler": "constant",
    "lr_warmup_ratio": 0,
    "advantage_estimator": "group_norm",
    "init_kl_coef": 0,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_policy_learns_to_look(seed: int, tmp_path: Path) -> None:
    task = colours.make(tmp_path)
    course = learn(task.config(tmp_path / "run", **SETTINGS, seed=seed), colours.reward, GOAL)
    assert course.first < 0.5
    assert course.solved, f"{course.latest:.2f} after {len(course.rewards)} samples"
