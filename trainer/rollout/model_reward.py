"""Rewards from the group of processes that holds the reward models."""

from __future__ import annotations

from collections.abc import Sequence

from env.types import RewardRequest, Score
from trainer.cluster.worker_group import Group
from trainer.config.reward_models import Combine
from trainer.workers.protocols import RewardModel


class ModelReward:
    """A RewardFunction that asks a group of reward models, each process for a share of the samples.

    With several models a sample's reward is `combine` of theirs, in the flag's order; one that any
    of them cannot score is failed.
    """

    def __init__(self, group: Group[RewardModel], combine: Combine) -> None:
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
