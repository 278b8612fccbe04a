"""A tracker that fails: no step waits. tests/program/test_trackers.py has the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.printed import Printed
from tests.support.repository import ROOT
from tests.support.waiting import eventually
from trainer.config.config import Config
from trainer.metrics import trackers
from trainer.metrics.trackers import Kind

TENSORBOARD = """
import resource
import sys
from pathlib import Path

from trainer.config.config import Config
from trainer.metrics import trackers

root = Path(sys.argv[1])
(board,) = trackers.connect(Config(run_dir=root, use_tensorboard=root / "board"), 0)
board.log(1, {"train/reward": 0.5})
sys.dont_write_bytecode = True  # the limit would cut off the file, and every later import fail
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for step in range(2, 200):
    board.log(step, {f"train/metric_{number}": 0.5 for number in range(30)})
trackers.CLOSE_SECONDS = 60.0
board.close(0)
print("the attempt goes on", flush=True)
"""


def test_a_disk_that_takes_no_more_of_tensorboard_does_not_end_the_attempt(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TENSORBOARD, str(tmp_path)],
        env=dict(os.environ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "--use_tensorboard takes no further rows in this attempt: OSError: " in done.stdout
    assert done.stdout.endswith("the attempt goes on\n")


def test_a_tracker_that_fails_says_so_at_once_and_takes_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run may take days, and its person looks at the tracker."""

    def make(config: Config, run_id: str) -> Any:
        raise ConnectionError("no such project for key-0123456789")

    accelerate = ModuleType("accelerate")
    monkeypatch.setattr(accelerate, "PartialState", lambda cpu: None, raising=False)
    monkeypatch.setitem(sys.modules, "accelerate", accelerate)
    monkeypatch.setitem(trackers.KINDS, "mlflow", Kind(make, lambda tracker: None))
    monkeypatch.setenv("TRACKER_KEY", "key-0123456789")
    (tracker,) = trackers.connect(Config(run_dir=tmp_path, log_with=("mlflow",)), 0)
    printed = Printed(capsys)
    eventually(lambda: printed.has("has them all"))
    assert printed.text == (
        "--log_with mlflow takes no further rows in this attempt: ConnectionError: no such project "
        "for ********. metrics.jsonl has them all.\n"
    )
    eventually(tracker._end.done)
    tracker.log(1, {"train/reward": 0.5})
    tracker.close(0)
    assert capsys.readouterr().out == ""
