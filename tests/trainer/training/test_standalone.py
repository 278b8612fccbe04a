"""A trainer without a head records begin and end of its run, as a head does."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from contract.journal import EventSource, append_event, read_events
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.run import run_facts
from entrypoint.run.flight_record import run_end
from entrypoint.run.run_list import state_of
from tests.support.tiny_run import Tiny
from trainer.cluster.stop import Stopped
from trainer.training.standalone import recorded
from trainer.types import TrainingError, UnfitModelError

AGAIN = "python -m trainer --max_steps 1"


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (None, "finished", 0),
        (Stopped("Stopped after step 1 of 2, which is saved."), "stopped", 143),
        (TrainingError("Step 1: the loss is NaN"), "failed", 70),
        (ZeroDivisionError("division by zero"), "failed", 70),
        (KeyboardInterrupt(), "stopped", 143),
    ],
)
def test_its_end_is_in_the_journal_and_in_the_result(
    tiny: Tiny, run_dir: Path, error: BaseException | None, outcome: str, code: int
) -> None:
    config, run = tiny.config(run_dir), RunFiles(run_dir)
    words = ["--pretrain", str(tiny.model), "--max_steps", "1", "--use_wandb", "secret"]
    with pytest.raises(type(error)) if error else nullcontext(), recorded(config, words, AGAIN):
        assert state_of(run) == ("running", "")
        if error:
            raise error
    end = run_end.read(run)
    assert end is not None
    assert (end.outcome, end.result["exit_code"]) == (outcome, code)
    assert end.result["attempts"] == 1
    assert end.resume == ("" if outcome == "finished" else AGAIN)
    if outcome != "finished":
        assert f"to start it again: {AGAIN}" in list(end.why())
    assert run_facts.read(run) | {"created": ""} == {
        "name": run_dir.parent.name,
        "recipe": "builtin",
        "model": tiny.model.name,
        "model_path": str(tiny.model),
        "algorithm": "PPO (gae)",
        "run_dir": str(run_dir),
        "created": "",
    }
    assert run_facts.flags(run)["max_steps"] == "1"
    assert "secret" not in run.run.read_text()


def test_a_second_start_is_another_attempt_and_keeps_what_the_run_began_with(
    tiny: Tiny, run_dir: Path
) -> None:
    config, run = tiny.config(run_dir), RunFiles(run_dir)
    for steps in ("1", "2"):
        with recorded(config, ["--pretrain", str(tiny.model), "--max_steps", steps]):
            assert run_end.read(run) is None
    assert json.loads(run.result.read_text())["attempts"] == 2
    assert run_facts.flags(run)["max_steps"] == "1"


@pytest.mark.parametrize(
    ("error", "steps", "shown"),
    [
        (UnfitModelError("--pretrain: no linear layer"), 0, "2"),
        (UnfitModelError("--pretrain: no linear layer"), 3, "1"),
        (TrainingError("Step 1: the loss is NaN"), 0, "1"),
    ],
)
def test_what_was_refused_before_a_step_is_nothing_that_the_next_run_began_with(
    tiny: Tiny, run_dir: Path, error: Exception, steps: int, shown: str
) -> None:
    config, run = tiny.config(run_dir), RunFiles(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    if steps:
        Progress(step=steps, total_steps=4).write(run.progress)
    with pytest.raises(type(error)), recorded(config, ["--max_steps", "1"]):
        raise error
    assert run_facts.flags(run)["max_steps"] == "1", "the report of the refusal has its flags"
    with recorded(config, ["--max_steps", "2"]):
        assert run_facts.flags(run)["max_steps"] == shown


def test_a_run_that_a_head_began_keeps_its_identity_after_a_refusal(
    tiny: Tiny, run_dir: Path
) -> None:
    config, run = tiny.config(run_dir), RunFiles(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    run.run.write_text(known := json.dumps({"name": "ours", "run_id": "r1", "recipe": "builtin"}))
    append_event(run.journal, "start", "The head starts.", {}, source=EventSource())
    with pytest.raises(UnfitModelError), recorded(config, []):
        raise UnfitModelError("--pretrain: no linear layer")
    with recorded(config, ["--max_steps", "2"]):
        assert run.run.read_text() == known


def test_with_a_head_it_records_nothing(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLCALL_ATTEMPT", "1")
    with recorded(tiny.config(run_dir), []):
        pass
    assert not list(read_events(RunFiles(run_dir).journal))
