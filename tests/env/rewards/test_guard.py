"""Scores of a user's function have Python's numbers, or say what was wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from env.registry import REWARDS, reward_function
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
        ([Score(ScoreStatus.OK, 1.0, TEXT)], "the metric why 'text' is a text (str)"),
        ([0.5], "A function that gives numbers takes the parameter `completions`"),
        (None, "it returned None, where a list with a Score for each completion is wanted"),
        ("good", "it returned a text, 'good', where a list with a Score"),
        (0.5, "it returned 0.5, where a list with a Score"),
    ],
)
def test_what_is_no_score_fails_the_completions_and_says_why(given: Any, reason: str) -> None:
    (score,) = guard(lambda requests: given)([REQUEST])
    assert not score.ok
    assert reason in score.error


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), np.float32("nan")])
def test_a_score_that_is_not_finite_fails_alone(reward: Any) -> None:
    found = guard(lambda requests: [Score.of(reward), Score.of(1.0)])([REQUEST, REQUEST])
    assert [score.ok for score in found] == [False, True]
    assert found[0].error == f"the reward is {float(reward)}"


@pytest.mark.parametrize("label", ["NaN", "nan"])
def test_a_label_that_is_nan_is_a_fault_of_its_row_alone(label: str) -> None:
    read = [name for name, registered in REWARDS.items() if registered.reads_label]
    assert {"math", "gsm8k", "exact-match", "choice"} <= set(read)
    assert not {"format", "length"} & set(read)
    for name in set(read) - {"judge"}:  # which wants a server
        (score,) = reward_function(name)([RewardRequest(f"Q{label}", "Q", label)])
        assert (score.ok, score.error) == (False, "the label is NaN: the row has none")
    requests = [RewardRequest("Q5", "Q", one) for one in ("5", label, "6")]
    scores = reward_function("exact-match")(requests)
    assert [score.ok for score in scores] == [True, False, True]
    assert [scores[0].reward, scores[2].reward] == [1.0, 0.0]
