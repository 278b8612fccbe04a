"""GDPO gets each of several rewards by itself, and whatever else is added to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from env.rewards.weighted import Part, WeightedReward
from env.types import Prompt, RewardPart, Score
from tests.support.tiny_run import Tiny, metric_rows, share_of, train
from trainer.algorithms.reward_shaping import RunningMoments
from trainer.rollout import rewards
from trainer.rollout.rollout_state import PendingRollouts, PromptGroup, whole
from trainer.types import Completion, Sample, TrainingError

GDPO = {"advantage_estimator": "gdpo", "init_kl_coef": 0, "remote_rm_url": None}
TWO = GDPO | {"reward": ("gsm8k:2", "format:2")}


def parted(*parts: float, turns: float = 0.0) -> Sample:
    """A sample of two tokens whose reward is a sum of parts of weight 2."""
    completion = Completion(
        text="",
        tokens=np.zeros(2, dtype=np.int32),
        action_mask=np.ones(2, dtype=np.bool_),
        log_probs=np.zeros(2, dtype=np.float32),
        finished=True,
        versions=np.zeros(2, dtype=np.int32),
        turn_rewards={1: turns} if turns else {},
        metrics={"turns": 1.0} if turns else {},
    )
    score = Score.of(2 * sum(parts))
    score = replace(score, parts=tuple(RewardPart(part, 2.0) for part in parts))
    return Sample(Prompt(0, ""), completion, whole(completion, score))


def test_each_reward_the_penalty_and_the_rewards_of_turns_are_apart(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, **TWO, overlong_buffer_len=2)
    samples = [parted(1.0, 0.0, turns=0.25), parted(0.0, 1.0, turns=0.5)]
    failed = replace(samples[0], score=Score.failed("outage"))
    found, _ = rewards.shaped(config, [*samples, failed], RunningMoments())
    assert found.parts is not None
    assert found.weights == (2.0, 2.0, 1.0, 1.0)
    known, penalty = found.parts[:3], found.parts[3]
    assert known[:, :2].tolist() == [[1, 0], [0, 1], [0.25, 0.5]]
    assert np.isnan(known[:, 2]).all()
    assert penalty.tolist() == [-0.5, -0.5, -0.5]
    assert found.whole[:2].tolist() == [2.25 - 0.5, 2.5 - 0.5]


def test_one_reward_is_one_part(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, **GDPO | {"remote_rm_url": "arithmetic"})
    one = replace(parted(1.0), score=Score.of(3.0))
    found, _ = rewards.shaped(config, [one, one], RunningMoments())
    assert found.parts is not None
    assert (found.parts.tolist(), found.weights) == ([[3, 3]], (1.0,))


def test_completions_of_other_reward_functions_are_refused(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, **TWO)
    one = replace(parted(1.0), score=Score.of(3.0))
    with pytest.raises(TrainingError, match="other reward functions than others"):
        rewards.shaped(config, [parted(1.0, 0.0), one], RunningMoments())


def test_a_checkpoint_keeps_the_parts_of_scored_rollouts() -> None:
    sample = parted(1.0, 0.5)
    group = PromptGroup(number=0, prompt=sample.prompt, version=0, greedy=1)
    group.completions = {0: sample.completion, 1: sample.completion}
    group.scores = [sample.score, Score.of(1.0)]
    stored = PendingRollouts(settings={}, groups=[group]).dump()
    (found,) = PendingRollouts.parse(stored).groups
    (read,) = found.samples
    assert read.score == sample.score
    assert isinstance(read.score.parts[0], RewardPart)
    assert read.greedy
    assert read.greedy.score == Score.of(1.0)


def test_a_run_trains_on_two_rewards(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, **GDPO, reward=("arithmetic:1", "length:0.5"), max_steps=1)
    both = WeightedReward([Part("one", 1.0, share_of("1")), Part("two", 0.5, share_of("2"))])
    train(config, both)
    (row,) = [row for row in metric_rows(config) if "train/policy_loss" in row]
    assert row["train/grad_norm"] > 0
