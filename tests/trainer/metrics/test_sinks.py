"""W&B that fails: the real package, offline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT
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
    assert sinks.connect(Config(run_dir=tmp_path), None) is None
    said = capsys.readouterr().out
    assert "No W&B in this attempt: " in said
    assert "URL scheme should be" in said
