"""What callbacks are told of a tiny run, and what one that raises leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.manifest import newest_checkpoint
from tests.support.tiny_run import Tiny, metric_rows, train
from trainer.metrics.callbacks import (
    Callback,
    CallbackError,
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
