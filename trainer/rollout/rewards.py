"""Completions → scored samples → the rewards that advantages are estimated from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from env.types import Prompt, RewardFunction, RewardRequest, Score
from trainer.algorithms.reward_shaping import LengthPenalties, RunningMoments
from trainer.config.config import Config
from trainer.types import Completion, FloatArray, Sample, TrainingError


def score(reward: RewardFunction, written: Sequence[tuple[Prompt, Completion]]) -> list[Sample]:
    """Completions with their scores. Raises TrainingError where no single one could be scored."""
    samples = scored(reward, written)
    require_one(samples)
    return samples


def scored(reward: RewardFunction, written: Sequence[tuple[Prompt, Completion]]) -> list[Sample]:
    """Completions with their scores, be it that none could be scored."""
    return [
        Sample(prompt, completion, score)
        for (prompt, completion), score in zip(written, scores(reward, written), strict=True)
    ]


def scores(reward: RewardFunction, written: Sequence[tuple[Prompt, Completion]]) -> list[Score]:
    """What the reward function says of each completion."""
    return reward(
        [
            RewardRequest(prompt.text + completion.text, prompt.text, prompt.label, prompt.messages)
            for prompt, completion in written
        ]
    )


def require_one(samples: Sequence[Sample]) -> None:
    """Raises TrainingError where no single one could be scored."""
    if not any(sample.score.ok for sample in samples):
        raise TrainingError(
            f"none of {len(samples)} completions could be scored: {samples[0].score.error}"
        )


def rewards_of(samples: Sequence[Sample]) -> FloatArray:
    """[B] rewards; NaN where scoring failed. Raises TrainingError for one that is not finite."""
    for sample in samples:
        if sample.score.ok and not np.isfinite(sample.score.reward):
            raise TrainingError(
                f"the reward of prompt {sample.prompt.index} is {sample.score.reward}"
            )
    known = [s.score.reward if s.score.ok else np.nan for s in samples]
    return np.array(known, dtype=np.float32)


def shaped(
    config: Config, samples: Sequence[Sample], moments: RunningMoments
) -> tuple[FloatArray, RunningMoments]:
    """[B] rewards, normalised and with length penalties as the flags say; the moments after them.

    Raises TrainingError for a reward that is not finite.
    """
    rewards = rewards_of(samples)
    if config.normalize_reward:
        moments = moments.including(rewards)
        rewards = moments.normalise(rewards)
    penalties = LengthPenalties(
        longest=config.generate_max_len,
        overlong_buffer_len=config.overlong_buffer_len,
        overlong_penalty_factor=config.overlong_penalty_factor,
        stop_properly_penalty_coef=config.stop_properly_penalty_coef,
    )
    lengths = np.array([sample.completion.length for sample in samples])
    finished = np.array([sample.completion.finished for sample in samples])
    return penalties.apply(rewards, lengths, finished), moments
