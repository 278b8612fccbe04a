"""The length of a completion, in characters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from env.rewards.completion import completion_of
from env.types import RewardFunction, RewardRequest, Score


def make(free: int = 2000, most: int = 4000) -> RewardFunction:
    """Return a reward: 1 up to `free` characters, less by the character, 0 from `most` on.

    Raises ValueError unless 0 <= free < most.
    """
    if not 0 <= free < most:
        raise ValueError(f"free is {free} and most is {most} characters; wanted is free < most")
    return partial(_scores, free, most)


def _scores(free: int, most: int, requests: Sequence[RewardRequest]) -> list[Score]:
    lengths = [len(completion_of(request).strip()) for request in requests]
    return [
        Score.of(min(1.0, max(0.0, (most - length) / (most - free))), characters=float(length))
        for length in lengths
    ]
