"""Rewards that are not usable number: a status, never a crash of the trainer."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from env.http.client import RemoteReward, RewardUnreachable
from env.http.protocol import AnswerError, read_answer, write_answer
from env.registry import given_in_python, reward_function
from env.types import RewardRequest, Score

HUGE = 10**400
REQUESTS = [RewardRequest(f"{n}+0={n}", f"{n}+0=", str(n)) for n in range(3)]
Start = Callable[..., Any]


@pytest.mark.parametrize("text", [str(HUGE), "1" * 5000, "1e999", "NaN", '"1"', "[1]", "{}"])
def test_an_answer_of_a_server_with_such_a_reward_is_waited_out(scripted: Start, text: str) -> None:
    bad = f'{{"rewards": [0.0, {text}, 2.0]}}'.encode()
    right = {"rewards": [0.0, True, 2]}
    server = scripted(lambda number, _: (200, bad if number < 1 else right))
    found = RemoteReward([server.url], deadline=20, chunk_size=9)(REQUESTS)
    assert [score.reward for score in found] == [0.0, 1.0, 2.0]
    assert len(server.bodies) == 2


def test_a_server_that_gives_no_other_is_an_outage(scripted: Start) -> None:
    server = scripted(lambda *_: (200, {"rewards": [HUGE] * 3}))
    with pytest.raises(RewardUnreachable, match=r"the reward 1000.* is not a finite number"):
        RemoteReward([server.url], deadline=0.5, chunk_size=9)(REQUESTS)


def test_a_metric_that_is_no_number_is_left_out() -> None:
    logs = {"a": [HUGE, 1, "x"], "b": [None, 2.0, math.nan]}
    found = read_answer({"rewards": [1, 2, 3], "extra_logs": logs}, 3)
    assert [score.metrics for score in found] == [{}, {"a": 1.0, "b": 2.0}, {}]
    with pytest.raises(AnswerError):
        read_answer([HUGE], 1)
    assert write_answer([Score.of(HUGE, a=HUGE)])["errors"] == [
        f"the reward is {str(HUGE)[:57]}..."
    ]


@pytest.mark.parametrize(
    ("values", "rewards"),
    [
        ([1, HUGE, 2], [1.0, None, 2.0]),
        ([Decimal("0.5"), Decimal("NaN"), Fraction(1, 4)], [0.5, None, 0.25]),
        ([np.float32(0.5), np.float64("inf"), np.longdouble(2)], [0.5, None, 2.0]),
        ([True, False, np.bool_(True)], [1.0, 0.0, 1.0]),
        ([math.nan, -math.inf, 1], [None, None, 1.0]),
        (["1", "2", "3"], [None, None, None]),
        ([b"1", 1, 2], [None, None, None]),
    ],
)
def test_values_of_a_python_function_are_numbers_or_failed_scores(
    values: Sequence[Any],
    rewards: list[float | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "reward.py"
    file.write_text(
        "import builtins\ndef reward_func(queries, prompts, labels):\n    return builtins.values\n"
    )
    monkeypatch.setattr(builtins, "values", values, raising=False)
    found = reward_function(str(file))(REQUESTS)
    assert [score.reward if score.ok else None for score in found] == rewards


def test_a_score_of_the_python_api_that_is_too_large_fails_alone() -> None:
    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        return [Score.of(1), Score.of(HUGE), Score.of(2, acc=HUGE)]

    with given_in_python(reward) as name:
        found = reward_function(name)(REQUESTS)
    assert [score.ok for score in found] == [True, False, False]
    assert found[1].error.startswith("the reward function gave no usable number")
