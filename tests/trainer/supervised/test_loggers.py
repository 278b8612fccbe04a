from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wandb

from contract.exit_codes import ExitCode
from tests.support.tiny_run import Tiny, to_argv
from tests.support.wandb_server import wandb_server
from trainer.metrics.sinks import finish_limit
from trainer.supervised.__main__ import main
from trainer.supervised.loggers import reports, run_id, variables
from trainer.supervised.options import StageFlags
from trainer.supervised.parse import parse


def flags(**more: Any) -> StageFlags:
    given = {"pretrain": "o/m", "dataset": "o/d", "save_path": "/out", **more}
    return parse("sft", to_argv(given)).flags


@pytest.mark.parametrize(
    ("given", "environ", "reporters"),
    [
        ({}, {}, []),
        ({}, {"WANDB_API_KEY": "k"}, ["wandb"]),
        ({"use_wandb": "false"}, {"WANDB_API_KEY": "k"}, []),
        ({"use_wandb": True}, {}, ["wandb"]),
        ({"use_wandb": "key", "use_tensorboard": "/t"}, {}, ["wandb", "tensorboard"]),
    ],
)
def test_where_metrics_go(
    given: dict[str, Any], environ: dict[str, str], reporters: list[str]
) -> None:
    assert reports(flags(**given), environ) == reporters


def test_the_flags_become_the_variables_of_wandb() -> None:
    named = {"wandb_project": "p", "wandb_group": "g", "wandb_org": "o", "use_tensorboard": "/t"}
    assert variables(flags(use_wandb="key", **named), None, {}) == {
        "WANDB_PROJECT": "p",
        "WANDB_RUN_GROUP": "g",
        "WANDB_ENTITY": "o",
        "WANDB_API_KEY": "key",
        "WANDB_FINISH_TIMEOUT": "30",
        "TENSORBOARD_LOGGING_DIR": "/t",
    }
    assert "WANDB_API_KEY" not in variables(flags(use_wandb=True), None, {})


@pytest.mark.parametrize(
    ("environ", "limit"),
    [
        ({"WANDB_FINISH_TIMEOUT": "600"}, "600"),
        ({"WANDB_LOG_MODEL": "end"}, None),
        ({"WANDB_LOG_MODEL": "false"}, "30"),
    ],
)
def test_the_end_of_a_stage_waits_for_wandb_as_long_as_the_user_says(
    environ: dict[str, str], limit: str | None
) -> None:
    given = variables(flags(use_wandb=True), None, environ)
    assert given.get("WANDB_FINISH_TIMEOUT") == limit
    assert finish_limit(environ | given) == (float(limit) if limit else None)


def test_all_attempts_are_one_run_of_wandb(tmp_path: Path) -> None:
    first = run_id(tmp_path / "run")
    assert run_id(tmp_path / "run") == first
    assert run_id(tmp_path / "other") != first
    again = variables(flags(run_dir=tmp_path / "run"), first, {})
    assert (again["WANDB_RUN_ID"], again["WANDB_RESUME"]) == (first, "allow")


def test_an_address_of_wandb_that_is_none_costs_a_stage_its_rows_alone(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_BASE_URL": "none.example:80"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)  # W&B writes there
    wandb.teardown()  # W&B reads its variables once in a process; a test before may have used it
    assert main(sft(tiny, tmp_path, use_wandb=True)) == ExitCode.FINISHED
    assert (tmp_path / "model" / "model.safetensors").is_file()
    said = capsys.readouterr().out
    assert said.count("W&B takes no further rows in this attempt: ") == 1
    assert "URL scheme should be" in said


FREEZES_WANDB = """
import psutil, runpy, sys, transformers
from trainer.metrics import sinks
from trainer.supervised import loggers, run

frozen, moment = [], sys.argv.pop(1)


def freeze():
    if frozen:
        return
    for process in psutil.Process().children(recursive=True):
        if "wandb-core" in process.name():
            process.suspend()
            frozen.append(process.pid)
    print(f"frozen: {frozen}", flush=True)
    sinks.ANSWER_SECONDS = 1.0
    loggers.FINISH_SECONDS = 1


def before(function):
    def frozen_first(*given, **more):
        freeze()
        return function(*given, **more)

    return frozen_first


def log(trainer, logs, *given):
    freeze()
    logs |= {f"a name of a number, which is {n}": 0.5 for n in range(50_000)}  # fills the socket
    log_of_transformers(trainer, logs, *given)


log_of_transformers = transformers.Trainer.log
if moment == "log":
    transformers.Trainer.log = log
elif moment == "export":
    run._export = before(run._export)
elif moment == "begin":
    of_wandb = transformers.integrations.integration_utils
    of_wandb.save_model_architecture_to_file = before(of_wandb.save_model_architecture_to_file)
elif moment == "save":
    transformers.Trainer._save_checkpoint = before(transformers.Trainer._save_checkpoint)
runpy.run_module("trainer.supervised", run_name="__main__", alter_sys=True)
"""
OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}


@pytest.mark.slow
def test_a_wandb_that_is_frozen_holds_the_end_of_a_stage_no_longer_than_its_limit(
    tiny: Tiny, tmp_path: Path
) -> None:
    given = OFFLINE | {"WANDB_FINISH_TIMEOUT": "1"}
    end_while_frozen("export", sft(tiny, tmp_path, use_wandb=True), tmp_path, given)
    assert (tmp_path / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("moment", "environ"),
    [
        pytest.param("log", {"WANDB_FINISH_TIMEOUT": "1"}, marks=pytest.mark.faults),
        pytest.param("save", {"WANDB_LOG_MODEL": "checkpoint"}, marks=pytest.mark.faults),
    ],
)
def test_a_wandb_that_is_frozen_costs_a_stage_its_rows_alone(
    tiny: Tiny, tmp_path: Path, moment: str, environ: dict[str, str]
) -> None:
    words = sft(tiny, tmp_path, use_wandb=True, save_steps=1, ckpt_path=tmp_path / "steps")
    said = end_while_frozen(moment, words, tmp_path, OFFLINE | environ)
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert said.count("W&B takes no further rows in this attempt: TimeoutError: ") == 1


@pytest.mark.faults
def test_a_wandb_that_is_frozen_before_it_has_the_model_costs_a_stage_its_rows_alone(
    tiny: Tiny, tmp_path: Path
) -> None:
    given = {"WANDB_API_KEY": "k" * 40, "WANDB_SILENT": "true", "WANDB_LOG_MODEL": "checkpoint"}
    with wandb_server() as server:
        given["WANDB_BASE_URL"] = server.url
        said = end_while_frozen("begin", sft(tiny, tmp_path, use_wandb=True), tmp_path, given)
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert said.count("W&B takes no further rows in this attempt: ") == 1


def end_while_frozen(
    moment: str, words: list[str], directory: Path, environ: dict[str, str]
) -> str:
    """Run a stage to its end, and freeze W&B's process at a moment. Return what it prints then."""
    said = directory / "said"  # a pipe would be full
    with said.open("w") as output:
        stage = subprocess.Popen(
            [sys.executable, "-c", FREEZES_WANDB, moment, *words],
            cwd=directory,
            env=os.environ | environ,
            stdout=output,
        )
    try:
        assert stage.wait(120) == ExitCode.FINISHED
    finally:
        stage.kill()
        _, told, after = said.read_text().partition("frozen: ")
        for pid in json.loads(after.partition("\n")[0] or "[]"):
            os.kill(pid, signal.SIGKILL)
    assert told
    return after


def test_a_disk_that_fails_tensorboard_costs_a_stage_its_rows_alone(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").write_text("a file where a directory is to be")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")  # the stage sets it in this process
    given = sft(tiny, tmp_path, use_tensorboard=tmp_path / "full" / "rows")
    assert main(given) == ExitCode.FINISHED
    assert (tmp_path / "model" / "model.safetensors").is_file()
    said = capsys.readouterr().out
    assert said.count("TensorBoard takes no further rows in this attempt: NotADirectoryError") == 1


def sft(tiny: Tiny, directory: Path, **more: Any) -> list[str]:
    """The words of a stage of two steps, whose model is to be in `directory`/model."""
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(8)]
    (directory / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    stage = {
        "pretrain": tiny.model,
        "dataset": directory / "rows.jsonl",
        "save_path": directory / "model",
        "train_batch_size": 8,
        "max_steps": 2,
        "max_epochs": 2,
        "logging_steps": 1,
    }
    return ["sft", *to_argv(stage | more)]
