"""W&B that fails: the real package, offline, or with a server that ceases to answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import wandb

from tests.support.repository import ROOT
from tests.support.wandb_server import wandb_server
from trainer.config.config import Config
from trainer.metrics import sinks

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
ATTEMPT = """
import sys
from pathlib import Path

import psutil

from trainer.config.config import Config
from trainer.metrics import sinks

sink = sinks.connect(Config(run_dir=Path(sys.argv[1])), None)
sink.log(1, {"train/reward": 0.5})
cores = psutil.Process().children(recursive=True)
for core in cores:
    core.kill()
psutil.wait_procs(cores, 30)
for step in (2, 3, 4):
    sink.log(step, {"train/reward": 0.5})
    sink.samples(step, [{"row": 1, "prompt": "1+1="}])
sink.failed("the run: an error")
sink.close(1)
print("the attempt goes on")
"""

SILENT_AT_THE_END = """
import os
import sys
from pathlib import Path

from trainer.config.config import Config
from trainer.metrics import sinks

sink = sinks.connect(Config(run_dir=Path(sys.argv[1])), None)
print("begun", flush=True)
input()
sink.log(1, {"train/reward": 0.5})
sink.close(0)
print("the attempt ends", flush=True)
os._exit(0)
"""
FROZEN_IN_THE_MIDDLE = """
import os
import sys
from pathlib import Path

from trainer.config.config import Config
from trainer.metrics import sinks

sink = sinks.connect(Config(run_dir=Path(sys.argv[1])), None)
sink.log(1, {"train/reward": 0.5})
print("begun", flush=True)
input()
sinks.ANSWER_SECONDS = 1.0
for step in range(2, 100):
    sink.log(step, {f"train/{number}": 0.5 for number in range(1000)})
sink.close(0)
print("the attempt ends", flush=True)
os._exit(0)
"""
END_SECONDS = 90


def test_training_goes_on_if_wandb_s_own_process_is_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPT, str(tmp_path)],
        env=dict(os.environ) | OFFLINE,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("W&B takes no further rows in this attempt: ") == 1
    assert done.stdout.endswith("the attempt goes on\n")


def test_an_address_of_wandb_that_is_none_costs_its_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**OFFLINE, "WANDB_BASE_URL": "wandb.example:8080"}.items():
        monkeypatch.setenv(name, value)
    wandb.teardown()  # W&B reads its variables once in a process; a test before may have used it
    assert sinks.connect(Config(run_dir=tmp_path), None) is None
    said = capsys.readouterr().out
    assert "No W&B in this attempt: " in said
    assert "URL scheme should be" in said


@pytest.mark.slow
def test_a_wandb_server_that_ceases_to_answer_does_not_hold_the_end_of_a_run(
    tmp_path: Path,
) -> None:
    given = dict(os.environ) | {"WANDB_API_KEY": "k" * 40, "WANDB_SILENT": "true"}
    given["WANDB_FINISH_TIMEOUT"] = "2"
    argv = [sys.executable, "-c", SILENT_AT_THE_END, str(tmp_path)]
    with (
        wandb_server() as server,
        subprocess.Popen(
            argv,
            env=given | {"WANDB_BASE_URL": server.url},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as attempt,
    ):
        assert attempt.stdout is not None
        assert attempt.stdout.readline() == "begun\n"
        server.silent.set()
        try:
            said, _ = attempt.communicate("\n", END_SECONDS)
        finally:
            attempt.kill()
    assert "W&B has not taken the last rows in 2 s (WANDB_FINISH_TIMEOUT): `wandb sync " in said
    assert said.endswith("the attempt ends\n")


@pytest.mark.slow
def test_a_frozen_process_of_wandb_does_not_hold_the_end_of_a_run(tmp_path: Path) -> None:
    said = said_while_frozen(SILENT_AT_THE_END, tmp_path)
    assert "W&B has not taken the last rows in 1 s (WANDB_FINISH_TIMEOUT)" in said
    assert said.endswith("the attempt ends\n")


@pytest.mark.slow
def test_training_goes_on_if_wandb_s_own_process_is_frozen(tmp_path: Path) -> None:
    said = said_while_frozen(FROZEN_IN_THE_MIDDLE, tmp_path)
    lost = "W&B takes no further rows in this attempt: TimeoutError: its process has not answered"
    assert said.count(lost) == 1
    assert said.endswith("the attempt ends\n")


def said_while_frozen(attempt: str, run_dir: Path) -> str:
    """Freeze W&B's process once the attempt has begun. Return what the attempt then prints."""
    given = dict(os.environ) | OFFLINE | {"WANDB_FINISH_TIMEOUT": "1"}
    argv = [sys.executable, "-c", attempt, str(run_dir)]
    with subprocess.Popen(
        argv, env=given, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        cores = psutil.Process(process.pid).children(recursive=True)
        for core in cores:
            core.suspend()
        try:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.wait(END_SECONDS) == 0
        finally:
            for core in cores:
                core.kill()
            process.kill()
        assert cores
        return process.stdout.read()  # ends when W&B's process has ended, too


@pytest.mark.slow
def test_the_end_of_a_run_waits_for_wandb_for_half_a_minute_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_FINISH_TIMEOUT", raising=False)
    sink = sinks.connect(Config(run_dir=tmp_path), None)
    assert sink is not None
    sink.close(0)
    assert os.environ["WANDB_FINISH_TIMEOUT"] == "30"
