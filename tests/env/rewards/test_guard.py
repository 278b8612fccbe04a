"""Scores of a user's function have Python's numbers, or say what was wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from env.rewards.guard import guard
from env.types import RewardRequest, Score, ScoreStatus

TEXT: Any = {"why": "text"}
REQUEST = RewardRequest("1+1=2", "1+1=", "2")


def test_numbers_of_numpy_are_pythons() -> None:
    numbers: Any = {"reward": np.float32(0.5), "metrics": {"found": np.int64(3)}}
    given = Score(ScoreStatus.OK, **numbers)
    (score,) = guard(lambda requests: [given])([REQUEST])
    assert json.loads(json.dumps(asdict(score)))["metrics"] == {"found": 3}
    assert score == Score.of(0.5, found=3)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([0.5], "0.5, where a Score is wanted"),
        ([Score(ScoreStatus.OK, 1.0, TEXT)], "could not convert string to float"),
        (None, "'NoneType' object is not iterable"),
    ],
)
def test_what_is_no_score_fails_the_completions_and_says_why(given: Any, reason: str) -> None:
    (score,) = guard(lambda requests: given)([REQUEST])
    assert not score.ok
    assert reason in score.error
