"""The real trackers of --log_with: what each has after two attempts of one run.

They are in an environment of their own: each asks for older versions than the lock has.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from tests.support.repository import ROOT

PLACE = ROOT / ".trackers"
PACKAGES = PLACE / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"

pytestmark = [
    pytest.mark.skipif(not (PLACE / ".done").exists(), reason="no trackers: make .trackers/.done"),
    pytest.mark.cluster,  # each process imports torch and a tracker, for seconds
]


def log(tracker: str, run_dir: Path, code: int = 0, **variables: str) -> str:
    """Log as two attempts do. Returns what they printed."""
    names = ("MLFLOW_", "SWANLAB_", "TRACKIO_", "HF_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(names)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.tracker_run", tracker, str(run_dir), str(code)],
        env=kept
        | {"PYTHONPATH": f"{PACKAGES}:{ROOT}", "MLFLOW_DISABLE_TELEMETRY": "true"}
        | variables,
        cwd=run_dir.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_mlflow_has_the_rows_of_both_attempts_in_one_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run-7"
    assert "takes no further rows" not in log("mlflow", run_dir)
    (metric,) = run_dir.glob("mlruns/*/*/metrics/train/reward")
    rows = [line.split() for line in metric.read_text().splitlines()]
    assert [(float(value), int(step)) for _, value, step in rows] == [
        (0.1, 1),
        (0.2, 2),
        (0.3, 3),
        (0.4, 4),
    ]
    run = metric.parents[2]
    assert (run / "params" / "log_project").read_text() == "sums"
    assert "run_name: run-7" in (run / "meta.yaml").read_text()
    assert "status: 3" in (run / "meta.yaml").read_text()  # FINISHED
    assert json.loads((run_dir / ".trackers.json").read_text()) == {"mlflow": run.name}


def test_mlflow_s_run_of_a_failed_attempt_has_failed(tmp_path: Path) -> None:
    log("mlflow", tmp_path / "run", ExitCode.JOB_FAILED)
    (meta,) = tmp_path.glob("run/mlruns/*/*/meta.yaml")
    assert "status: 4" in meta.read_text()  # FAILED


def test_trackio_has_the_rows_of_both_attempts_in_one_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run-7"
    log("trackio", run_dir)
    with sqlite3.connect(run_dir / "trackio" / "sums.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by step")
        found = [(name, step, json.loads(text)) for name, step, text in rows]
    assert [step for _, step, _ in found] == [1, 2, 3, 4]
    assert [row["train/reward"] for *_, row in found] == [0.1, 0.2, 0.3, 0.4]
    (name,) = {name for name, *_ in found}
    assert name.startswith("run-7-")


def test_swanlab_has_the_rows_of_each_attempt_on_disk(tmp_path: Path) -> None:
    run_dir = tmp_path / "run-7"
    assert "takes no further rows" not in log("swanlab", run_dir, SWANLAB_MODE="offline")
    files = sorted(run_dir.glob("swanlab/run-*/*.swanlab"))
    assert len(files) >= 1
    kept = b"".join(file.read_bytes() for file in files)
    assert b"train/reward" in kept
    own = json.loads((run_dir / ".trackers.json").read_text())["swanlab"]
    assert all(own in file.name for file in files)


def test_a_server_that_does_not_answer_costs_the_rows_and_not_the_run(tmp_path: Path) -> None:
    said = log(
        "mlflow",
        tmp_path / "run",
        MLFLOW_TRACKING_URI="http://127.0.0.1:9",
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
    )
    assert "--log_with mlflow takes no further rows in this attempt: MlflowException" in said
    assert "metrics.jsonl has them all." in said
