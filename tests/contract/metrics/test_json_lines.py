"""Rows of steps: those after a resumed step go, however long the file is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from contract.metrics import json_lines
from contract.metrics.json_lines import JsonLines


def row(step: int, **more: float) -> str:
    return json.dumps({"step": step, "at": 1.0, **more}) + "\n"


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that were parsed."""
    known, seen = json_lines._row, []

    def counted(line: bytes) -> Any:
        seen.append(line)
        return known(line)

    monkeypatch.setattr(json_lines, "_row", counted)
    return seen


def test_a_start_parses_as_many_rows_of_a_long_run_as_of_a_short_one(
    tmp_path: Path, parsed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "SETTLED_BYTES", 2_000)
    counts = []
    for steps in (300, 3_000):
        path = tmp_path / f"{steps}.jsonl"
        path.write_text("".join(row(step) for step in range(1, steps + 1)))
        inode = path.stat().st_ino
        parsed.clear()
        JsonLines(path, steps - 20)
        counts.append(len(parsed))
        assert steps_in(path) == list(range(1, steps - 19))
        assert path.stat().st_ino == inode, "it is not written again"
    assert max(counts) < 100


def test_of_many_rows_to_drop_none_is_parsed(tmp_path: Path, parsed: list[bytes]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(row(step) for step in range(1, 3_001)))
    JsonLines(path, 2)
    assert steps_in(path) == [1, 2]
    assert len(parsed) == 2


def test_an_evaluation_that_follows_later_steps_stays(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    held = row(3, **{"eval/accuracy": 0.5})
    path.write_text("".join([row(1), row(2), row(3), row(4), row(5), held, row(6)]) + '{"step": 7')
    JsonLines(path, 3)
    assert path.read_text() == "".join([row(1), row(2), row(3), held])


def test_a_crash_amid_the_change_leaves_rows_that_the_next_attempt_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    held = row(3, **{"eval/accuracy": 0.5})
    path.write_text("".join([row(1), row(3), row(4), held, *(row(step) for step in range(5, 40))]))

    class CrashError(Exception):
        pass

    def crash(*_: object) -> None:
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", crash)
        with pytest.raises(CrashError):
            JsonLines(path, 3)
    JsonLines(path, 3)
    lines = path.read_text().splitlines(keepends=True)
    assert lines == [row(1), row(3), held]
    JsonLines(path, 3).log(4, {})
    assert steps_in(path) == [1, 3, 3, 4]


def test_of_a_long_run_the_rows_of_some_steps_are_read(tmp_path: Path, parsed: list[bytes]) -> None:
    path = tmp_path / "metrics.jsonl"
    held = row(1_000, **{"eval/accuracy": 0.5})
    path.write_text("".join(row(step) for step in range(1, 1_001)) + held + '{"step": 7')
    rows = json_lines.spread(path, 4)
    assert [one["step"] for one in rows] == [1, 334, 667, 1_000, 1_000]
    assert len(parsed) == 5
    assert json_lines.spread(tmp_path / "none", 4) == []
