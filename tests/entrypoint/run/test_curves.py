"""The curves that the page draws: thinned rows of metrics.jsonl, read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.run_dir import write_atomically
from entrypoint.run import curves
from entrypoint.run.curves import MOST_POINTS, Curves


def lines(*steps: int, **more: float) -> str:
    return "".join(
        json.dumps({"step": step, "at": 1.0, "train/reward": float(step), **more}) + "\n"
        for step in steps
    )


def rewards(answer: dict[str, Any]) -> dict[int, float | None]:
    return dict(zip(answer["steps"], answer["series"].get("train/reward", ()), strict=True))


def test_a_short_run_has_a_point_for_each_step_and_none_that_is_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(1, 2, **{"train/kl": 0.123456789, "perf/other": 1.0}) + "damaged\n")
    answer = Curves(path).rows()
    assert rewards(answer) == {1: 1.0, 2: 2.0}
    assert answer["series"]["train/kl"] == [0.12346, 0.12346]
    assert "perf/other" not in answer["series"]
    assert [(chart["title"], chart["metrics"][0]["name"]) for chart in answer["charts"]] == [
        ("Reward", "train/reward"),
        ("KL from the reference, nats", "train/kl"),
    ]
    newer = Curves(path).rows(after=9)
    assert newer["charts"] == answer["charts"], "a reader of the newest points draws all"


def test_a_long_run_has_means_over_as_many_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(*range(3 * MOST_POINTS)))
    answer = Curves(path).rows()
    assert MOST_POINTS // 2 <= len(answer["steps"]) <= MOST_POINTS
    assert rewards(answer)[3] == 1.5  # of the steps 0 to 3
    assert len(json.dumps(answer)) < 10_000


def test_of_a_very_long_run_some_rows_are_parsed_and_all_evaluations(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    count = 50 * MOST_POINTS
    evaluated = lines(19_001, **{"eval/accuracy": 0.5})
    path.write_text(lines(*range(19_001)) + evaluated + lines(*range(19_002, count)))
    known = Curves(path)
    answer = known.rows()
    assert sum(sums["train/reward"][1] for sums in known._points._points.values()) < count / 2
    known_rewards = rewards(answer)
    assert all(abs(value - step) < 64 for step, value in known_rewards.items() if value is not None)
    assert [value for value in answer["series"]["eval/accuracy"] if value is not None] == [0.5]


def test_megabytes_of_zeros_hide_no_later_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    zeros = "\0" * (2 * curves.READ_BYTES + 10)
    path.write_text(f"{lines(1, 2)}{zeros}\n{lines(4, 5)}")
    known = Curves(path)
    answer = known.rows()
    while answer["more"]:
        answer = known.rows()
    assert rewards(answer) == {1: 1.0, 2: 2.0, 4: 4.0, 5: 5.0}


def test_a_reader_gets_only_what_it_has_not(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(1, 2))
    known = Curves(path)
    first = known.rows()
    with path.open("a") as file:
        file.write(lines(3) + '{"step": 4')  # a row that is still being written
    assert rewards(known.rows(2, first["version"])) == {2: 2.0, 3: 3.0}
    assert rewards(known.rows(2, "another")) == {1: 1.0, 2: 2.0, 3: 3.0}


def test_steps_that_are_repeated_after_a_crash_count_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(1, 2, 3))
    known = Curves(path)
    first = known.rows()
    write_atomically(path, lines(1) + lines(2, **{"train/kl": 1.0}))
    again = known.rows(3, first["version"])
    assert rewards(again) == {1: 1.0, 2: 2.0}
    assert again["version"] != first["version"]


def test_a_file_that_was_cut_and_has_grown_since_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(1, 2, 3))
    known = Curves(path)
    first = known.rows()
    with path.open("r+") as file:  # the same file, as after a resume at step 1
        file.truncate(len(lines(1)))
        file.seek(0, 2)
        file.write(lines(2, 3, 4, **{"train/kl": 1.0}))
    again = known.rows(3, first["version"])
    assert rewards(again) == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
    assert again["series"]["train/kl"] == [None, 1.0, 1.0, 1.0]
    assert again["version"] != first["version"]


def test_a_large_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "READ_BYTES", 200)
    monkeypatch.setattr(curves, "READ_SECONDS", 0.0)
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(*range(20)))
    known = Curves(path)
    answers = [known.rows()]
    while answers[-1]["more"]:
        answers.append(known.rows())
    assert len(answers) > 3
    assert len(answers[-1]["steps"]) == 20


def test_without_a_file_there_are_no_points(tmp_path: Path) -> None:
    assert Curves(tmp_path / "none").rows()["steps"] == []
