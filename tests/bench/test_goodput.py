"""The simulated run goes through the real rules, and its record is that of its journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.goodput import Simulator
from bench.sides.simulated_run import HOUR, Inputs, simulate

INPUTS = Inputs(step=600.0, checkpoint=6.0, slow_share=0.0)


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
    assert 0.8 < (record.effective_time_ratio or 0) < 0.95


def test_the_budget_ends_a_run_that_gains_nothing(tmp_path: Path) -> None:
    record = simulate(INPUTS, 60.0, 24 * HOUR, seed=2, path=tmp_path / "journal.jsonl")
    assert record.outcome == "failed"
    assert record.steps < 10


def test_a_spare_takes_a_lost_machines_place_while_another_machine_is_waited_for(
    tmp_path: Path,
) -> None:
    months = Simulator(tmp_path, 36 * HOUR, seed=1).with_spares(INPUTS, 1024, 2.0)
    waited = {spares: month.record.seconds.get("roll call", 0) for spares, month in months.items()}
    assert waited[0] > 10 * waited[1] >= 10 * waited[2] > 0
    assert months[1].a_gpu_paid > months[0].a_gpu_paid
    assert months[8].a_gpu_paid < months[8].effective


def test_a_slow_machine_costs_until_a_spare_replaces_it(tmp_path: Path) -> None:
    simulator = Simulator(tmp_path, 36 * HOUR, seed=1)
    inputs = replace(INPUTS, slow_share=0.02, slow_factor=1.5)
    stays = simulator.month(replace(inputs, spares=1), 1024, 1e9).effective
    evicted = simulator.month(replace(inputs, spares=1, noticed_steps=5), 1024, 1e9).effective
    assert stays < 0.7 < 0.9 < evicted


def test_the_same_seed_is_the_same_month(tmp_path: Path) -> None:
    one, again = (
        simulate(INPUTS, 2 * HOUR, 12 * HOUR, seed=3, path=tmp_path / f"{n}.jsonl") for n in (1, 2)
    )
    assert one == again
