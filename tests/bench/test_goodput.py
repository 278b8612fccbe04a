"""The simulated run goes through the real rules, and its record is that of its journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.goodput import HOUR, Inputs, simulate

INPUTS = Inputs(step=600.0, checkpoint=6.0)


def test_without_failures_only_start_and_checkpoints_take_time_from_the_steps(
    tmp_path: Path,
) -> None:
    record = simulate(INPUTS, 1e12, 24 * HOUR, seed=0, path=tmp_path / "journal.jsonl")
    assert record.failures == []
    assert set(record.seconds) == {"training", "checkpoints", "start of the job", "roll call"}
    assert record.seconds["training"] == 600 * record.steps


def test_every_failure_is_answered_and_the_run_gains_steps_in_between(tmp_path: Path) -> None:
    record = simulate(INPUTS, 2 * HOUR, 36 * HOUR, seed=1, path=tmp_path / "journal.jsonl")
    assert record.outcome == "stopped"
    assert 10 < len(record.failures) < 30
    answers = {one.failure: one.answer for one in record.failures}
    assert answers["gpu_fault"] == "replace"
    assert answers["unknown"] == "resume"
    assert sum(record.seconds.values()) == pytest.approx(record.wall_seconds, abs=1)
    assert 0.8 < record.effective_time_ratio < 0.95


def test_the_budget_ends_a_run_that_gains_nothing(tmp_path: Path) -> None:
    record = simulate(INPUTS, 60.0, 24 * HOUR, seed=2, path=tmp_path / "journal.jsonl")
    assert record.outcome == "failed"
    assert record.steps < 10


def test_the_same_seed_is_the_same_month(tmp_path: Path) -> None:
    one, again = (
        simulate(INPUTS, 2 * HOUR, 12 * HOUR, seed=3, path=tmp_path / f"{n}.jsonl") for n in (1, 2)
    )
    assert one == again
