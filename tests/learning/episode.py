"""A run that ends when its task is solved or its samples are spent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean

import pytest

from env.types import RewardFunction, RewardRequest, Score
from tests.support.tiny_run import train
from trainer.cluster.stop import Stopped, StopRequest
from trainer.config.config import Config

SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.faults) for seed in (2, 3)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What counts as learned."""

    reward: float
    """Mean that the latest samples must reach."""
    window: int
    """How many those are."""
    budget: int
    """Samples that may be drawn, with those that dynamic filtering throws away."""


@dataclass(slots=True)
class Course:
    """A reward function that remembers, and asks for an end once there is nothing to wait for."""

    function: RewardFunction
    goal: Goal
    stop: StopRequest = field(default_factory=StopRequest)
    rewards: list[float] = field(default_factory=list)
    solved: bool = False
    """Whether the mean of a window has reached the goal."""

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        scores = self.function(requests)
        self.rewards += [score.reward for score in scores]
        if len(self.rewards) >= self.goal.window and self.latest >= self.goal.reward:
            self.solved = True
        if self.solved or len(self.rewards) >= self.goal.budget:
            self.stop.requested = True
        return scores

    @property
    def first(self) -> float:
        return fmean(self.rewards[: self.goal.window])

    @property
    def latest(self) -> float:
        return fmean(self.rewards[-self.goal.window :])


def learn(config: Config, reward: RewardFunction, goal: Goal) -> Course:
    """Train until the goal is reached or its budget is spent."""
    course = Course(reward, goal)
    with suppress(Stopped):
        train(config, course, course.stop)
    print(f"{len(course.rewards)} samples, reward {course.first:.3f} to {course.latest:.3f}")
    return course
