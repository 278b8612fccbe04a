"""What the Trainer's callback prints and asks for at a step."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from contract.exit_codes import ExitCode
from contract.launch.log_lines import FINISHED, PART, STEP
from tests.support.repository import ROOT
from tests.support.tiny_run import Tiny
from trainer.cluster.launch import with_steps
from trainer.cluster.launch.with_steps import Steps, on_any_cpu, show_output

BEGUN = """
import sys
from types import SimpleNamespace
from trainer.cluster.launch.with_steps import Steps
state = SimpleNamespace(is_world_process_zero=False)
Steps().on_train_begin(SimpleNamespace(), state, SimpleNamespace())
sys.exit(0)
"""


@pytest.fixture
def steps() -> Steps:
    return Steps()


def begin(steps: Steps) -> None:
    state = TrainerState(is_world_process_zero=False)
    steps.on_train_begin(TrainingArguments(use_cpu=True, report_to=[]), state, TrainerControl())


def step(steps: Steps, number: int) -> TrainerControl:
    state = TrainerState(global_step=number, max_steps=40, is_world_process_zero=True)
    control = TrainerControl()
    steps.on_step_end(TrainingArguments(use_cpu=True, report_to=[]), state, control)
    return control


def test_a_step_is_a_line_that_the_recipe_reads(
    steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = TrainingArguments(use_cpu=True, report_to=[])
    step(steps, 1)
    logs = {"loss": 2.0, "reward": 0.25, "kl": 0.125, "epoch": 1.0}
    steps.on_log(arguments, TrainerState(), TrainerControl(), logs=logs)
    step(steps, 2)
    first, second = map(STEP.search, capsys.readouterr().out.splitlines())
    assert first
    assert second
    assert first["step"] == "1"
    assert first["reward"] is None
    assert second.groupdict() == {
        **{"step": "2", "total_steps": "40", "loss": "2", "reward": "0.25", "kl": "0.125"},
        "eval": None,
    }


@pytest.mark.parametrize(
    "name", ["eval_accuracy", "eval_rewards/accuracies", "eval_mean_token_accuracy"]
)
def test_an_evaluation_behind_the_last_step_is_told_at_once(
    steps: Steps, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    step(steps, 40)
    state = TrainerState(global_step=40, max_steps=40, is_world_process_zero=True)
    arguments = TrainingArguments(use_cpu=True, report_to=[])
    steps.on_log(arguments, state, TrainerControl(), logs={name: 0.75, "eval_loss": 1.0})
    other_rank = TrainerState(is_world_process_zero=False)
    steps.on_log(arguments, other_rank, TrainerControl(), logs={name: 0.75})
    found = [STEP.search(line) for line in capsys.readouterr().out.splitlines()]
    assert [match and match["eval"] for match in found] == [None, "0.75"]


def test_evaluations_and_writes_between_steps_show_signs_of_life(
    steps: Steps, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(with_steps, "SIGN_SECONDS", 0.0)
    arguments = TrainingArguments(use_cpu=True, report_to=[])
    state = TrainerState(global_step=20, max_steps=40, is_world_process_zero=True)
    saves, idle = TrainerControl(should_save=True), TrainerControl()
    steps.on_step_end(arguments, state, saves)
    for _ in range(2):
        steps.on_prediction_step(arguments, state, idle)
    steps.on_evaluate(arguments, state, saves)
    steps.on_evaluate(arguments, state, idle)
    monkeypatch.setattr(with_steps, "SIGN_SECONDS", 60.0)
    steps.on_prediction_step(arguments, state, idle)
    steps.on_epoch_end(arguments, state, saves)
    other_rank = TrainerState(global_step=20, is_world_process_zero=False)
    steps.on_epoch_end(arguments, other_rank, saves)
    steps.on_train_end(arguments, state, idle)
    told = [PART.fullmatch(line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [one and (one["part"], int(one["count"])) for one in told] == [
        ("save", 20),
        ("evaluation", 1),
        ("evaluation", 2),
        ("save", 20),
        ("save", 20),
        ("export", 20),
    ]


def test_a_checkpoint_that_is_complete_ends_the_sign_of_its_write(
    steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = TrainingArguments(use_cpu=True, report_to=[])
    state = TrainerState(global_step=20, max_steps=40, is_world_process_zero=True)
    saves = TrainerControl(should_save=True)
    steps.on_step_end(arguments, state, saves)
    steps.on_save(arguments, state, saves)
    *_, written = capsys.readouterr().out.splitlines()
    assert STEP.search(written)


def test_a_kl_that_is_logged_before_any_reward_hides_no_step(
    steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = TrainingArguments(use_cpu=True, report_to=[])
    for logs in ({"kl": 0.125}, {"reward": 0.25}):
        steps.on_log(arguments, TrainerState(), TrainerControl(), logs=logs)
        step(steps, 1)
    found = [STEP.search(line) for line in capsys.readouterr().out.splitlines()]
    assert [match and match["reward"] for match in found] == [None, "0.25"]
    assert [match and match["kl"] for match in found] == ["0.125", "0.125"]


def test_sigterm_saves_at_the_end_of_the_step_and_exits_with_143(steps: Steps) -> None:
    arguments = TrainingArguments(use_cpu=True, report_to=[])
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        begin(steps)
        control = step(steps, 3)
        assert not control.should_save
        steps.on_save(arguments, TrainerState(), control)
        os.kill(os.getpid(), signal.SIGTERM)
        control = step(steps, 4)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert control.should_save
    assert control.should_training_stop
    with pytest.raises(SystemExit) as ended:
        steps.on_save(arguments, TrainerState(), control)
    assert ended.value.code == ExitCode.STOPPED


def test_the_scripts_own_handler_of_sigterm_stays(steps: Steps) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    own = signal.getsignal(signal.SIGTERM)
    try:
        begin(steps)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_several_ranks_on_cpus_load_their_optimizer(tmp_path: Path) -> None:
    torch.save({"state": torch.ones(2)}, tmp_path / "optimizer.pt")
    torch.serialization.register_package(0, lambda _: None, on_any_cpu)
    loaded = torch.load(tmp_path / "optimizer.pt", map_location="cpu:0", weights_only=True)
    assert loaded["state"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("body", "rank", "tells"),
    [
        ("print('done')", "0", True),
        ("import sys; sys.exit(0)", "0", True),
        ("import sys; sys.exit()", "0", True),
        ("import sys; sys.exit(3)", "0", False),
        ("raise ValueError('broken')", "0", False),
        (BEGUN, "0", False),  # a reward function may do so in the middle of a training
        ("print('done')", "1", False),
    ],
)
def test_rank_0_tells_that_its_script_has_run_to_its_end(
    body: str,
    rank: str,
    *,
    tells: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "train.py"
    script.write_text(body)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr("sys.argv", ["with_steps", str(script)])
    monkeypatch.setattr("sys.path", ["", *sys.path])
    monkeypatch.setattr("transformers.trainer.DEFAULT_CALLBACKS", [])
    monkeypatch.setattr("transformers.trainer.Trainer.train", Trainer.train)  # it is put back
    monkeypatch.setattr(torch.serialization, "register_package", lambda *_: None)  # once a process
    monkeypatch.setattr(Steps, "training", False)
    with contextlib.suppress(SystemExit, ValueError):
        with_steps.main()
    assert (FINISHED in capsys.readouterr().out.splitlines()) == tells


def test_a_training_that_has_ended_is_over(steps: Steps) -> None:
    state = TrainerState(global_step=40, max_steps=40, is_world_process_zero=True)
    begin(steps)
    assert Steps.training
    steps.on_train_end(TrainingArguments(use_cpu=True, report_to=[]), state, TrainerControl())
    assert not Steps.training


OF_CODE = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained({model!r})
rows = [dict(input_ids=[n % 9 + 1, 2, 3], labels=[n % 9 + 1, 2, 3]) for n in range(40)]
common = dict(per_device_train_batch_size=2, use_cpu=True, report_to=[], save_steps=2)
for name, steps in {trainings!r}:
    arguments = TrainingArguments(output_dir=name, max_steps=steps, **common)
    Trainer(model=model, args=arguments, train_dataset=rows).train()
"""


def steps_of(script: Path, **environ: str) -> list[int]:
    """Run the script with one rank in its own directory; return the steps that it tells."""
    done = subprocess.run(
        [sys.executable, "-m", "trainer.cluster.launch.with_steps", script.name],
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    found = map(STEP.search, done.stdout.splitlines())
    return [int(match["step"]) for match in found if match]


@pytest.mark.slow
def test_a_trainer_that_code_has_set_up_goes_on_from_the_newest_checkpoint(
    tiny: Tiny, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    script = tmp_path / "train.py"
    body = {"model": str(tiny.model)}
    script.write_text(OF_CODE.format(**body, trainings=[("first", 2), ("out", 4)]))
    assert set(steps_of(script, ROLLCALL_RUN_DIR=str(run))) == {1, 2, 3, 4}
    assert (run / "hf").resolve() == tmp_path / "out"
    script.write_text(OF_CODE.format(**body, trainings=[("first", 2), ("out", 6)]))
    newest = str(run / "hf/checkpoint-4")
    told = steps_of(script, ROLLCALL_RUN_DIR=str(run), ROLLCALL_RESUME_CHECKPOINT=newest)
    assert sorted(set(told)) == [1, 2, 5, 6], "the other Trainer of the script begins anew"


def test_checkpoints_outside_of_the_run_directory_are_found_there_and_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.setenv("ROLLCALL_RUN_DIR", str(run))
    show_output(run / "out")
    assert (run / "hf").readlink() == Path("out")
    show_output(run / "hf")
    assert (run / "hf").readlink() == Path("out"), "it is no link to itself"
    assert not capsys.readouterr().err
    show_output(tmp_path / "out")
    assert (run / "hf").readlink() == tmp_path / "out"
    assert "outside of the run directory" in capsys.readouterr().err
