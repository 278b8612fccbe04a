"""Sums such as 3+4=: a completion is worth 1 where it is the sum, nothing else, and 0 elsewhere.

The model has 40 supervised steps behind it and then writes one sum in three right, sampled at
temperature 1. All 24 prompts are trained on: what is measured is the policy's improvement, not what
it makes of sums that it has never seen.

Samples until the latest 512 have a mean of 0.75, where the budget is 9216 (PyTorch 2.13 on a CPU):

=====================  ======  ======  ======
algorithm              seed 1  seed 2  seed 3
=====================  ======  ======  ======
PPO                      4096    4480    4736
REINFORCE++              4224    3712    4096
REINFORCE                5888    4096    4096
REINFORCE++-baseline     3840    4096    4736
RLOO                     4096    3840    4736
GRPO                     4480    4480    4736
Dr. GRPO                 4224    4480    5632
GSPO                     4480    4736    4736
DAPO                     4336    4768    4664
=====================  ======  ======  ======
"""

from __future__ import annotations

from pathlib import Path

import pytest

from env.prepare.__main__ import main as prepare
from env.rewards import arithmetic
from tests.learning.algorithms import ALGORITHMS
from tests.learning.episode import SEEDS, Goal, learn
from tests.support.tiny_run import Tiny
from trainer.supervised.__main__ import main as supervised

pytestmark = [pytest.mark.learning, pytest.mark.timeout(400)]

GOAL = Goal(reward=0.75, window=512, budget=9216)
SETTINGS = {
    "rollout_batch_size": 16,
    "n_samples_per_prompt": 8,
    "micro_rollout_batch_size": 128,
    "train_batch_size": 64,
    "micro_train_batch_size": 64,
    "max_steps": 100,
    "generate_max_len": 4,
    "actor_learning_rate": 2e-3,
    "critic_learning_rate": 4e-3,
    "lr_scheduler": "constant",
    "lr_warmup_ratio": 0,
}
PARTS = {"PPO": {"freezing_actor_steps": 5}, "DAPO": {"overlong_buffer_len": 2}}
"""What an algorithm sets besides, on this task."""
TRIED = ("PPO", "GRPO", "DAPO")
"""With a critic, by groups, and with filtered prompts; test_bandit tries all of them."""


@pytest.fixture(scope="session")
def beginner(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A model that knows a little of the sums, and all of them as prompts."""
    data = tmp_path_factory.mktemp("sums")
    task = ["--max-operand", "4", "--train-size", "25", "--warmup-size", "25", "--eval-size", "1"]
    shape = ["--layers", "1", "--hidden-size", "64", "--max-length", "16"]
    assert prepare(["arithmetic", "--out", str(data), *task, *shape]) == 0
    teaching = [
        *("sft", "--pretrain", str(data / "model"), "--dataset", str(data / "warmup.jsonl")),
        *("--save_path", str(data / "warm"), "--max_steps", "40", "--max_epochs", "40"),
        *("--train_batch_size", "32", "--micro_train_batch_size", "32"),
        *("--learning_rate", "3e-3"),
    ]
    assert supervised(teaching) == 0
    return Tiny(data / "warm", data / "train.jsonl", data / "eval.jsonl")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "algorithm",
    [
        name if name in TRIED else pytest.param(name, marks=pytest.mark.faults)
        for name in ALGORITHMS
    ],
)
def test_the_sums_are_learned(algorithm: str, seed: int, beginner: Tiny, run_dir: Path) -> None:
    flags = SETTINGS | ALGORITHMS[algorithm] | PARTS.get(algorithm, {})
    course = learn(beginner.config(run_dir, **flags, seed=seed), arithmetic.exact, GOAL)
    assert course.first < 0.5
    assert course.solved, f"{course.latest:.2f} after {len(course.rewards)} samples"
