"""Rows of the ranks' times, also those that storage has damaged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.launch.rank_times import RankTime, as_row, at_of, of_row

TIMES = [RankTime(0, "10.0.0.1", "H100", "GPU-1", 0.5, 1e12), RankTime(1, "", "AVX2 1", "", 2, 3.0)]


def test_times_come_back_from_the_file_as_they_were() -> None:
    row = json.loads(json.dumps(as_row({"policy": TIMES, "critic": TIMES[:1]})))
    assert of_row(row) == {"policy": TIMES, "critic": TIMES[:1]}


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        3,
        {"policy": 3},
        {"policy": [3]},
        {"policy": [[0, "a", "b", "c", 1.0]]},
        {"policy": [[-1, "a", "b", "c", 1.0, 1.0]]},
        {"policy": [[0, 1, "b", "c", 1.0, 1.0]]},
        {"policy": [[0, "a", "b", "c", float("nan"), 1.0]]},
        {"policy": [[0, "a", "b", "c", -1.0, 1.0]]},
        {"policy": []},
    ],
)
def test_damaged_times_are_left_out(damaged: Any) -> None:
    assert of_row({"step": 1, "at": 1.0, "roles": damaged}) == {}


def test_a_row_without_a_time_or_a_step_is_older_than_any_other() -> None:
    assert at_of({"step": 1, "at": 2.5}) == 2.5
    assert [at_of(row) for row in ({}, {"at": 2.5}, {"step": "1", "at": 2.5})] == [0.0] * 3
