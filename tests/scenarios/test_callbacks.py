"""What callbacks are told of a tiny run, and what one that raises leaves behind."""

from __future__ import annotations

from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from contract import journal
from contract.background import in_background
from contract.manifest import newest_checkpoint
from tests.support.tiny_run import Tiny, metric_rows, train
from trainer.metrics.callbacks import (
    Callback,
    CallbackError,
    Callbacks,
    CheckpointEnd,
    EvaluationEnd,
    StepEnd,
)

FLAGS: dict[str, Any] = {"advantage_estimator": "group_norm", "init_kl_coef": 0, "save_steps": 1}


class Told(Callback):
    def __init__(self, raises_at: int = 0) -> None:
        self.steps: list[StepEnd] = []
        self.checkpoints: list[CheckpointEnd] = []
        self.evaluations: list[EvaluationEnd] = []
        self._raises_at = raises_at

    def on_step_end(self, step: StepEnd) -> None:
        self.steps.append(step)
        if step.step == self._raises_at:
            raise KeyError("no such column")

    def on_checkpoint(self, checkpoint: CheckpointEnd) -> None:
        self.checkpoints.append(checkpoint)

    def on_evaluation(self, evaluation: EvaluationEnd) -> None:
        self.evaluations.append(evaluation)


def test_a_callback_is_told_of_steps_checkpoints_and_evaluations(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, max_steps=2, eval_dataset=tiny.held_out, **FLAGS)
    told = Told()
    train(config, callbacks=[told])
    rows = [row for row in metric_rows(config) if "train/reward" in row]
    assert [step.step for step in told.steps] == [1, 2]
    assert [step.reward for step in told.steps] == [row["train/reward"] for row in rows]
    assert [step.metrics["timing/step"] for step in told.steps] == [
        row["timing/step"] for row in rows
    ]
    assert {step.total_steps for step in told.steps} == {2}
    assert [checkpoint.step for checkpoint in told.checkpoints] == [1, 2]
    assert all((saved.directory / "MANIFEST.json").exists() for saved in told.checkpoints)
    assert [evaluation.step for evaluation in told.evaluations] == [0, 2]


def test_a_callback_that_raises_is_named_and_the_run_goes_on_after_its_step(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, max_steps=4, load_checkpoint=True, **FLAGS)
    with pytest.raises(CallbackError) as raised:
        train(config, callbacks=[Told(raises_at=2)])
    assert str(raised.value) == ("Told.on_step_end raised KeyError after step 2: 'no such column'")
    assert isinstance(raised.value.__cause__, KeyError)
    assert newest_checkpoint(config.checkpoints) == 1
    told = Told()
    assert train(config, callbacks=[told]).step == 4
    assert [step.step for step in told.steps] == [2, 3, 4]


def test_no_sentence_of_another_thread_parts_a_line_of_a_callback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "TURN_SECONDS", 60.0)
    step = StepEnd(step=1, total_steps=2, reward=0.5, seconds=1.0, metrics={})
    other: list[Future[None]] = []

    class Prints(Callback):
        def on_step_end(self, step: StepEnd) -> None:
            print("step", end=" ", flush=True)
            other.append(in_background("other", lambda: journal.print_event("step", "Step 1.")))
            wait(other, 0.2)
            print(step.step, "of", step.total_steps)

    Callbacks([Prints()]).step_end(step)
    other[0].result(timeout=60)
    assert capsys.readouterr().out == "step 1 of 2\nStep 1.\n"


def test_a_callback_that_takes_long_holds_up_no_other_thread(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "TURN_SECONDS", 0.01)
    step = StepEnd(step=1, total_steps=2, reward=0.5, seconds=1.0, metrics={})

    class Waits(Callback):
        def on_step_end(self, step: StepEnd) -> None:
            in_background("other", lambda: journal.print_event("step", "Step 1.")).result(60)

    Callbacks([Waits()]).step_end(step)
    assert capsys.readouterr().out == "Step 1.\n"
