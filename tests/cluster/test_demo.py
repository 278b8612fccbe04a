"""`make demo`, the main job, as people run it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from contract.journal import read_events
from contract.redaction import MASK
from contract.run_dir import RunFiles
from entrypoint.commands.demo_nodes import STOP_SECONDS
from entrypoint.processes.process import kill
from entrypoint.run import token as run_token

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


def shows_its_page(run: RunFiles) -> None:
    """The link that the head prints opens the page, and reads what the page shows."""
    log = (run.logs / "head.log").read_text()
    (shown,) = re.findall(r"the run's page, to read only: (http://\S+)$", log, re.M)
    link = shown.replace(MASK, run_token.read_only(run.token.read_text().strip()))
    with httpx.Client(base_url=link.partition("?")[0]) as browser:
        assert browser.get(link).is_success
        assert "<title>Rollcall</title>" in browser.get("/").text
        assert browser.get("/v1/state").json()["progress"]["step"] >= 1
        assert browser.post("/v1/stop").status_code == 403
    base, _, key = link.partition("/?read=")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{base.replace('127.0.0.2', '127.0.0.9')}/healthz")
    dashboard = f"{base.rpartition(':')[0]}:{int(base.rpartition(':')[2]) - 1}"
    answer = httpx.get(f"{dashboard}/api/jobs/", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code in (401, 403)  # the key opens nothing of Ray


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one demo: the second test goes on with what the first has stopped."""
    return tmp_path_factory.mktemp("demo")


@pytest.mark.timeout(300)
def test_ctrl_c_saves_ends_everything_and_says_last_how_it_goes_on(directory: Path) -> None:
    demo = start(directory, *FEW)
    try:
        journal = directory / "run" / "journal.jsonl"
        deadline = time.monotonic() + 200
        while not any(event["kind"] == "step" for event in read_events(journal)):
            assert demo.poll() is None, demo.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert len(of_the_demo(directory)) > 3
        shows_its_page(RunFiles(directory / "run"))
        began = time.monotonic()
        os.killpg(demo.pid, signal.SIGINT)
        output, _ = demo.communicate(timeout=60)
        assert "the run's page, to read only: http://127.0.0.2:" in output
        while left := of_the_demo(directory):  # the last are killed, and take a moment to die
            assert time.monotonic() - began < 2 + STOP_SECONDS, left
            time.sleep(0.1)
        assert time.monotonic() - began < 2 + STOP_SECONDS
        assert demo.returncode == 130
        assert "stopping: the job saves" in output
        assert "the demo is stopped. To go on: " in output.splitlines()[-1]
        assert [event["kind"] for event in read_events(journal)][-1] == "outcome"
    finally:
        kill(of_the_demo(directory))
        demo.kill()


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_demo_that_was_stopped_goes_on_to_its_end(directory: Path) -> None:
    journal = directory / "run" / "journal.jsonl"
    before = [event["kind"] for event in read_events(journal)].count("attempt")
    output, result = finished(directory, *FEW)
    assert before == 0 or "supervised warm-up" not in output
    assert result["attempts"] == before + 1
    assert result["eval_after"] > result["eval_before"]
    assert (directory / "run" / "learning_curve.png").stat().st_size > 10_000
    assert "held-out accuracy" in output


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_the_demo_learns_its_sums_through_two_crashes(tmp_path: Path) -> None:
    _, result = finished(tmp_path, "--crash")
    # On a busy machine the worker may be back before the driver misses the policy that was there.
    events = read_events(tmp_path / "run" / "journal.jsonl")
    is_repaired = any(event["kind"] == "rank-replaced" for event in events)
    assert result["attempts"] == (2 if is_repaired else 3)
    assert result["eval_before"] < 0.5
    assert result["eval_after"] >= 0.8


def finished(directory: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Return the output and the result of a demo that has ended with 0."""
    demo = start(directory, *options)
    try:
        output, _ = demo.communicate(timeout=850)
    finally:
        kill(of_the_demo(directory))
    assert demo.returncode == 0, output[-3000:]
    result = json.loads(Path(output.strip().splitlines()[-1]).read_text())
    assert result["outcome"] == "finished"
    return output, result
