"""Completions → scored samples → the rewards that advantages are estimated from."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from statistics import fmean
from typing import Protocol

import numpy as np

from contract.background import in_background
from contract.files import umask
from contract.metrics.names import REWARD_CALL
from contract.options import ended
from env.images.rows import texts_of
from env.types import Prompt, RewardFunction, RewardPart, RewardRequest, Score
from env.user_code import Cause, same_fault
from trainer.algorithms.advantages import Rewards
from trainer.algorithms.reward_shaping import LengthPenalties, RunningMoments
from trainer.cluster.worker_group import WorkerGroup
from trainer.config.config import Config
from trainer.config.reward_models import Combine
from trainer.rollout.rollout_state import PromptGroup
from trainer.types import (
    Completion,
    FloatArray,
    Metrics,
    Sample,
    TrainingError,
    UserCodeError,
)

logger = logging.getLogger(__name__)


Written = Sequence[tuple[Prompt, Completion]]


def score(reward: RewardFunction, written: Written, greedy: Written = ()) -> list[Sample]:
    """Return completions with their scores. Raises TrainingError if none could be scored.

    `greedy`: the greedy completion of each prompt, in order, if there are any.
    """
    samples = scored(reward, written, greedy)
    require_one(samples)
    return samples


def score_groups(reward: RewardFunction, groups: Sequence[PromptGroup]) -> list[Sample]:
    """Return the episodes of groups with their scores. Raises TrainingError if all failed."""
    unscored = [(group.prompt, c) for group in groups for c in group.unscored]
    found = iter(scores(reward, unscored) if unscored else [])
    for group in groups:
        group.add_scores(found)
    samples = [sample for group in groups for sample in group.samples]
    require_one(samples)
    return samples


def scored(reward: RewardFunction, written: Written, greedy: Written = ()) -> list[Sample]:
    """Return completions with their scores, also if none could be scored."""
    together = [*written, *greedy]
    every = [
        Sample(prompt, completion, score)
        for (prompt, completion), score in zip(together, scores(reward, together), strict=True)
    ]
    samples, of_prompts = every[: len(written)], every[len(written) :]
    if not of_prompts:
        return samples
    size = len(samples) // len(of_prompts)
    return [replace(one, greedy=of_prompts[at // size]) for at, one in enumerate(samples)]


def scores(reward: RewardFunction, written: Written) -> list[Score]:
    """Return the reward function's score of each completion."""
    return reward([_request(prompt, completion) for prompt, completion in written])


LARGEST_REWARD = float(np.finfo(np.float32).max)


class TimedReward:
    """A RewardFunction that measures the calls of another one, from any thread.

    It leaves the process's umask as it was.
    """

    def __init__(self, reward: RewardFunction) -> None:
        self._reward = reward
        self.concurrency: int = getattr(reward, "concurrency", 1)
        self._seconds: list[float] = []

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        began = time.monotonic()
        with umask.kept():
            found = self._reward(requests)
        self._seconds.append(time.monotonic() - began)
        return found

    def taken(self) -> Metrics:
        """Return the mean duration of the calls that ended since this was last asked, if any."""
        seconds, self._seconds = self._seconds, []
        return {REWARD_CALL: fmean(seconds)} if seconds else {}


def _request(prompt: Prompt, completion: Completion) -> RewardRequest:
    actions = np.flatnonzero(completion.action_mask)
    return RewardRequest(
        prompt.text + completion.text,
        prompt.text,
        prompt.label,
        prompt.messages and texts_of(prompt.messages),
        prompt.columns,
        completion.tokens[actions[0] :].tolist() if len(actions) else (),
    )


def require_one(samples: Sequence[Sample]) -> None:
    """Raises TrainingError if no completion could be scored.

    It is a UserCodeError if the same exception of a user's code is why, and another try of the same
    code would raise it again.
    """
    if any(sample.score.ok for sample in samples):
        return
    raised = same_fault([sample.score.raised for sample in samples])
    none = f"none of {len(samples)} completions could be scored"
    if raised is not None and raised.cause is Cause.BUG:
        said = ended(f"{none}: each time {raised}")
        raise UserCodeError(f"{said} Correct {raised.place or 'the code'}")
    raise TrainingError(f"{none}: {samples[0].score.error}")


def rewards_of(samples: Sequence[Sample]) -> FloatArray:
    """[B] rewards; NaN if scoring failed.

    Raises TrainingError for a reward that is NaN, or infinite as a number of 32 bits.
    """
    for sample in samples:
        if sample.score.ok and not abs(sample.score.reward) <= LARGEST_REWARD:
            raise TrainingError(
                f"the reward of prompt {sample.prompt.index} is {sample.score.reward}"
            )
    known = [s.score.reward if s.score.ok else np.nan for s in samples]
    return np.array(known, dtype=np.float32)


def shaped(
    config: Config, samples: Sequence[Sample], moments: RunningMoments
) -> tuple[Rewards, RunningMoments]:
    """Return rewards after normalisation and length penalties, and the new moments.

    Raises TrainingError for an infinite or NaN reward.
    """
    rewards = rewards_of(samples)
    if config.shaping.normalize_reward:
        moments = moments.including(rewards)
    greedy = [sample.greedy for sample in samples if sample.greedy]
    parts, weights = _parts(config, samples) if config.advantage.reads_parts else (None, ())
    shaped = Rewards(
        whole=_shaped(config, samples, rewards, moments),
        parts=parts,
        weights=weights,
        greedy=_shaped(config, greedy, rewards_of(greedy), moments) if greedy else None,
    )
    return shaped, moments


def _parts(
    config: Config, samples: Sequence[Sample]
) -> tuple[FloatArray | None, tuple[float, ...]]:
    """Return [K, B] the rewards of each function, and their weights [K].

    The penalty of overlong completions is a further part of weight 1, as are an episode's rewards
    of turns. If samples have different parts, a user's estimator gets none. Raises TrainingError if
    the estimator needs them.
    """
    each = [one.score.parts or (RewardPart(one.score.reward, 1.0),) for one in samples]
    known = [parts for one, parts in zip(samples, each, strict=True) if one.score.ok]
    weights = {tuple(part.weight for part in parts) for parts in known}
    if len(weights) > 1 and not config.advantage.sums_parts:
        return None, ()
    if len(weights) > 1:
        raise TrainingError(
            f"--advantage_estimator {config.advantage.estimator}: some completions have other "
            f"reward functions than others: weights {' and '.join(map(str, sorted(weights)))}"
        )
    (of_all,) = weights or {(1.0,)}
    unknown = (RewardPart(math.nan, 0.0),) * len(of_all)
    rows = [
        [part.reward for part in (parts if one.score.ok else unknown)]
        for one, parts in zip(samples, each, strict=True)
    ]
    found = np.array(rows, dtype=np.float32).T
    if config.shaping.overlong_buffer_len is None:
        return found, of_all
    penalty = _shaped(config, samples, np.zeros(len(samples), np.float32), RunningMoments())
    return np.vstack([found, penalty]), (*of_all, 1.0)


def _shaped(
    config: Config, samples: Sequence[Sample], rewards: FloatArray, moments: RunningMoments
) -> FloatArray:
    """Return [B] rewards of samples, normalised by `moments` and with length penalties."""
    if config.shaping.normalize_reward:
        rewards = moments.normalise(rewards)
    longest = config.sampling.max_new_tokens
    lengths = np.array([sample.completion.length for sample in samples])
    if config.has_environment:  # replies and observations share one limit
        longest = config.longest_sample
        lengths = np.array([len(sample.completion.tokens) for sample in samples])
    penalties = LengthPenalties(longest, config.shaping)
    finished = np.array([sample.completion.finished for sample in samples])
    return penalties.apply(rewards, lengths, finished)


class BackgroundScoring:
    """Scores finished groups in background threads while engines write other groups.

    If the reward function allows only one call at a time, the next call gets all groups that came
    meanwhile. A user's Python function is an example.
    """

    def __init__(self, reward: RewardFunction) -> None:
        self._reward = reward
        self._concurrency: int = getattr(reward, "concurrency", 1)
        self._waiting: list[PromptGroup] = []
        self._calls: dict[Future[list[Score]], list[PromptGroup]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._calls)

    def give(self, groups: list[PromptGroup]) -> None:
        """Queue finished groups. One call scores a whole group."""
        self._waiting += groups

    def work(self) -> list[PromptGroup]:
        """Return the groups whose scores have come.

        Raises what the reward function raised. The groups of that call wait to be scored again, and
        no other group gets scores that the caller has not seen.
        """
        self._begin_call()
        done = [call for call in self._calls if call.done()]
        for call in done:
            if error := call.exception():
                self._waiting += self._calls.pop(call)  # the groups are nowhere else
                raise error
        return [*self._given(), *(group for call in done for group in self._scored(call))]

    def wait(self, seconds: float) -> None:
        """Wait until a call ends, at most `seconds`."""
        wait(self._calls, seconds, FIRST_COMPLETED)

    def _begin_call(self) -> None:
        groups = [group for group in self._waiting if group.unscored]
        if groups and len(self._calls) < self._concurrency:
            self._waiting = [group for group in self._waiting if not group.unscored]
            written = [(group.prompt, c) for group in groups for c in group.unscored]
            call = in_background("reward", lambda: scores(self._reward, written))
            self._calls[call] = groups

    def _given(self) -> list[PromptGroup]:
        """Return the waiting groups whose environments gave all scores."""
        given = [group for group in self._waiting if not group.unscored]
        self._waiting = [group for group in self._waiting if group.unscored]
        for group in given:
            group.add_scores(iter(()))
        return given

    def _scored(self, call: Future[list[Score]]) -> list[PromptGroup]:
        groups = self._calls.pop(call)
        found = iter(call.result())
        for group in groups:
            group.add_scores(found)
        return groups


class BatchScorer(Protocol):
    """A worker with reward models."""

    def score(self, requests: Sequence[RewardRequest]) -> list[list[Score]]:
        """Return the score of each model for each request."""


class ModelReward:
    """A RewardFunction of reward models. Each process of the group scores a share of the samples.

    With several models, `combine` makes one reward of theirs, in the order of the flag. If a model
    cannot score a sample, or `combine` raises or gives no finite number, its score is failed.
    """

    def __init__(self, group: WorkerGroup[BatchScorer], combine: Combine) -> None:
        self._group = group
        self._combine = combine
        self._told = False
        """Whether the log has the place in the user's function that failed."""

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        share = -(-len(requests) // len(self._group))
        pending = [
            self._group.send(worker, BatchScorer.score, requests[start : start + share])
            for worker, start in enumerate(range(0, len(requests), share))
        ]
        return [self._combined(scores) for answer in pending for scores in answer.result()]

    def _combined(self, scores: Sequence[Score]) -> Score:
        if failed := next((score for score in scores if not score.ok), None):
            return failed
        rewards = [score.reward for score in scores]
        if len(rewards) == 1:
            return scores[0]
        each = {f"reward_model_{number}": reward for number, reward in enumerate(rewards, 1)}
        try:
            combined = float(self._combine(rewards))
        except (Exception, SystemExit) as error:  # it may be a user's function
            if not self._told:
                logger.exception("--reward_combine failed on the rewards %s.", rewards)
            self._told = True
            return Score.failed(f"--reward_combine raised {type(error).__name__}: {error}")
        if not math.isfinite(combined):
            return Score.failed(f"--reward_combine gave {combined} for {rewards}")
        parts = tuple(RewardPart(reward, 1.0) for reward in rewards)
        return replace(Score.of(combined, **each), parts=parts)
