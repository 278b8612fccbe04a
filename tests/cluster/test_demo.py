"""`make demo`, the main job, as people run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract.journal import read_events
from entrypoint.processes.process import kill

pytestmark = pytest.mark.cluster

FEW = ("--steps", "30")
"""Of the runs that are not about how well the policy learns."""


def start(directory: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "entrypoint", "demo", "--dir", str(directory), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell starts what runs in the background with Ctrl-C ignored, and children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def of_the_demo(directory: Path) -> list[psutil.Process]:
    """Every living process that carries the demo's directory in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(directory) in process.environ().get("ROLLCALL_RUN_DIR", ""):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return [process for process in found if process.pid != os.getpid()]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one demo: the second test goes on with what the first has stopped."""
    return tmp_path_factory.mktemp("demo")


@pytest.mark.timeout(300)
def test_ctrl_c_ends_everything_within_ten_seconds_and_leaves_no_process(directory: Path) -> None:
    demo = start(directory, *FEW)
    try:
        journal = directory / "run" / "journal.jsonl"
        deadline = time.monotonic() + 200
        while not any(event["kind"] == "step" for event in read_events(journal)):
            assert demo.poll() is None, demo.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert len(of_the_demo(directory)) > 3
        began = time.monotonic()
        os.killpg(demo.pid, signal.SIGINT)
        demo.communicate(timeout=30)
        while left := of_the_demo(directory):  # the last are killed, and take a moment to die
            assert time.monotonic() - began < 10, left
            time.sleep(0.1)
        assert time.monotonic() - began < 10
        assert demo.returncode == 130
    finally:
        kill(of_the_demo(directory))
        demo.kill()


@pytest.mark.timeout(600)
def test_a_demo_that_was_stopped_goes_on_through_two_crashes(directory: Path) -> None:
    journal = directory / "run" / "journal.jsonl"
    before = [event["kind"] for event in read_events(journal)].count("attempt")
    output, result = finished(directory, *FEW)
    assert before == 0 or "supervised warm-up" not in output
    assert result["attempts"] == before + attempts(directory)
    assert result["eval_after"] > result["eval_before"]
    assert (directory / "run" / "learning_curve.png").stat().st_size > 10_000
    assert "held-out accuracy" in output


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_the_demo_learns_its_sums_through_two_crashes(tmp_path: Path) -> None:
    _, result = finished(tmp_path)
    assert result["attempts"] == attempts(tmp_path)
    assert result["eval_before"] < 0.5
    assert result["eval_after"] >= 0.8


def finished(directory: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Return the output and the result of a demo whose driver and worker are killed once each."""
    demo = start(directory, "--crash", *options)
    try:
        output, _ = demo.communicate(timeout=850)
    finally:
        kill(of_the_demo(directory))
    assert demo.returncode == 0, output[-3000:]
    result = json.loads(Path(output.strip().splitlines()[-1]).read_text())
    assert result["outcome"] == "finished"
    return output, result


def attempts(directory: Path) -> int:
    """Return how many attempts two crashes make."""
    # On a busy machine the worker may be back before the driver misses the policy that was there.
    events = read_events(directory / "run" / "journal.jsonl")
    return 2 if any(event["kind"] == "rank-replaced" for event in events) else 3
