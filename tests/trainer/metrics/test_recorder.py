"""What a run's files say of evaluations and steps, whatever ends or comes at the same time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from contract.metrics.json_lines import JsonLines
from contract.progress import Progress
from tests.support.tiny_run import GRPO, Tiny, dying_at, events, metric_rows, train
from trainer.checkpoint.checkpointer import Saved
from trainer.checkpoint.writer import RunState
from trainer.metrics.outputs import Outputs
from trainer.metrics.recorder import Recorder, Step


def test_an_evaluation_that_a_crash_makes_the_next_attempt_repeat_has_one_row(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, eval_dataset=tiny.held_out, max_steps=1, **GRPO)
    with pytest.raises(RuntimeError, match="the driver dies"):
        train(config, dying_at(2))  # the first call scores the evaluation before the first step
    assert [row["step"] for row in metric_rows(config)] == [0]
    train(config)
    found = [(row["step"], "eval/accuracy" in row) for row in metric_rows(config)]
    assert found == [(0, True), (1, False), (1, True)]


def test_a_row_takes_the_place_of_rows_of_its_step_and_kind_alone(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl", 0)
    lines.replace(1, {"eval/accuracy": 0.1}, "eval/accuracy")
    lines.log(2, {"train/reward": 0.2})
    lines.log(2, {"eval/accuracy": 0.3, "eval/pass2": 0.4})
    lines.replace(2, {"eval/accuracy": 0.5}, "eval/accuracy")
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    values = [{name: row[name] for name in row if name not in ("step", "at")} for row in rows]
    assert values == [{"eval/accuracy": 0.1}, {"train/reward": 0.2}, {"eval/accuracy": 0.5}]


def test_a_step_may_become_durable_while_a_checkpoint_is_completed(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, **GRPO)
    run_dir.mkdir()
    state = RunState(step=0, seed=1, prompts={})
    recorder = Recorder(config, 99, state, Outputs.open(config, state, None))
    made = Step(row={}, reward=0, kl=0, tokens=1, seconds=1, began=0, phases={}, samples=())
    errors: list[Exception] = []

    def durable(step: int) -> None:
        try:
            recorder.step_durable(step)
        except Exception as error:
            errors.append(error)

    for step in range(1, 100):
        recorder.log_step(replace(state, step=step), made)
        replication = Thread(target=durable, args=(step,))
        replication.start()
        recorder.checkpoint_written(Saved(step - 1, 1, 0.0, 0.0))
        replication.join()
        shown = Progress.read(config.files.progress)
        assert not errors
        assert shown
        assert shown.step == step


def test_a_step_whose_replication_failed_is_finished_with_the_next_that_is_held(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, **GRPO)
    run_dir.mkdir()
    state = RunState(step=0, seed=1, prompts={})
    recorder = Recorder(config, 9, state, Outputs.open(config, state, None))
    made = Step(row={}, reward=0, kl=0, tokens=1, seconds=1, began=0, phases={}, samples=())

    def finished() -> list[int]:
        return [event["details"]["step"] for event in events(config, "step")]

    for step in (1, 2, 3):
        recorder.log_step(replace(state, step=step), made)
    assert finished() == []
    recorder.step_durable(2)
    assert finished() == [1, 2]
    recorder.goes_back(2)
    recorder.step_durable(3)
    assert finished() == [1, 2], "step 3 was never held"
    recorder.log_step(replace(state, step=3), made)
    recorder.checkpoint_written(Saved(3, 1, 0.0, 0.0))
    assert finished() == [1, 2, 3]


def test_every_second_step_has_a_row_and_the_last(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, max_steps=3, logging_steps=2, **GRPO)
    train(config)
    assert [row["step"] for row in metric_rows(config)] == [2, 3]
