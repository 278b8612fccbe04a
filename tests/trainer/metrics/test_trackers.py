"""A tracker of --log_with that fails. tests/program/test_trackers.py has the real ones."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.printed import Printed
from tests.support.waiting import eventually
from trainer.config.config import Config
from trainer.metrics import trackers
from trainer.metrics.trackers import Kind, QueuedTracker


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
    tracker = QueuedTracker("mlflow", Config(run_dir=tmp_path), "")
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
