"""Completions → scored samples → the rewards that advantages are estimated from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Thread

import numpy as np

from env.types import Prompt, RewardFunction, RewardRequest, Score
from trainer.algorithms.reward_shaping import LengthPenalties, RunningMoments
from trainer.cluster.worker_group import WorkerGroup
from trainer.config.config import Config
from trainer.config.reward_models import Combine
from trainer.rollout.rollout_state import PromptGroup
from trainer.types import Completion, FloatArray, Sample, TrainingError
from trainer.workers.protocols import RewardModel


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


class Scoring:
    def __init__(self, reward: RewardFunction) -> None:
        self._reward = reward
        self._at_once: int = getattr(reward, "concurrency", 1)
        self._waiting: list[PromptGroup] = []
        self._calls: dict[Future[list[Score]], list[PromptGroup]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._calls)

    def give(self, groups: list[PromptGroup]) -> None:
        """Groups that are written; each is scored in one call."""
        self._waiting += groups

    def work(self) -> list[PromptGroup]:
        """Groups whose scores have come.

        Raises what the reward function raised; its groups wait to be scored again.
        """
        if self._waiting and len(self._calls) < self._at_once:
            groups, self._waiting = self._waiting, []
            written = [(group.prompt, c) for group in groups for c in group.written]
            self._calls[_begun(lambda: scores(self._reward, written))] = groups
        done = [call for call in self._calls if call.done()]
        return [group for call in done for group in self._scored(call)]

    def wait(self, seconds: float) -> None:
        """Until a call is over, at most so long."""
        wait(self._calls, seconds, FIRST_COMPLETED)

    def _scored(self, call: Future[list[Score]]) -> list[PromptGroup]:
        groups = self._calls.pop(call)
        if call.exception():
            self._waiting += groups  # no one else has them, and the run may go on
        scores = iter(call.result())
        for group in groups:
            group.scores = [next(scores) for _ in group.completions]
        return groups


def _begun(call: Callable[[], list[Score]]) -> Future[list[Score]]:
    outcome: Future[list[Score]] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=run, name="reward", daemon=True).start()
    return outcome


class ModelReward:
    """A RewardFunction that asks a group of reward models, each process for a share of the samples.

    With several models a sample's reward is `combine` of theirs, in the flag's order; one that any
    of them cannot score is failed.
    """

    def __init__(self, group: WorkerGroup[RewardModel], combine: Combine) -> None:
        self._group = group
        self._combine = combine

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        share = -(-len(requests) // len(self._group))
        pending = [
            self._group.send(worker, RewardModel.score, requests[start : start + share])
            for worker, start in enumerate(range(0, len(requests), share))
        ]
        return [self._one(scores) for part in pending for scores in part.result()]

    def _one(self, scores: Sequence[Score]) -> Score:
        if failed := next((score for score in scores if not score.ok), None):
            return failed
        rewards = [score.reward for score in scores]
        if len(rewards) == 1:
            return scores[0]
        each = {f"reward_model_{number}": reward for number, reward in enumerate(rewards, 1)}
        return Score.of(float(self._combine(rewards)), **each)
