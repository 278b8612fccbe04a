"""The stacks of a node's processes, with real processes that stand still."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from contract.files.child_variables import NODE_MARK
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.processes import stacks
from entrypoint.processes.process import Process
from entrypoint.processes.programs import beside_interpreter
from tests.support.waiting import eventually


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[tuple[Settings, Process]]:
    """A node with one process that waits for ever, in a function of that name."""
    settings = read_settings(
        {
            "ROLLCALL_RUN_DIR": str(tmp_path),
            "ROLLCALL_NODE_NAME": f"stuck-{os.getpid()}",
            "ROLLCALL_RAY_TEMP_DIR": "/tmp/stacks",
        }
    )
    code = (
        "import time\n"
        "def waits_for_ever():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "waits_for_ever()"
    )
    env = {**os.environ, NODE_MARK: settings.node_mark}
    child = Process("stuck", [sys.executable, "-c", code], env=env, log_to=tmp_path / "said")
    while "ready" not in child.tail():
        time.sleep(0.02)
    yield settings, child
    child.stop(grace=0.1)


def test_the_stacks_of_a_nodes_processes_are_kept_or_why_they_cannot_be(
    stuck: tuple[Settings, Process], tmp_path: Path
) -> None:
    settings, child = stuck
    path = tmp_path / "stacks.txt"
    assert stacks.collect(settings, path) == 1
    text = path.read_text()
    assert f"=== {child.pid} {sys.executable} -c" in text
    if f"{beside_interpreter('py-spy')} cannot start" in text:
        assert "threads, in the kernel it waits in" in text
    else:
        assert "waits_for_ever (<string>:4)" in text


def test_a_frozen_process_is_read_too(stuck: tuple[Settings, Process], tmp_path: Path) -> None:
    settings, child = stuck
    frozen = psutil.Process(child.pid)
    frozen.suspend()
    eventually(lambda: frozen.status() == psutil.STATUS_STOPPED)  # a busy kernel takes its time
    stacks.collect(settings, tmp_path / "stacks.txt")
    text = (tmp_path / "stacks.txt").read_text()
    assert "waits_for_ever (<string>:4)" in text or "stopped, 1 threads" in text


@pytest.mark.parametrize(
    ("program", "asked"),
    [("_private/workers/default_worker.py", True), ("_private/log_monitor.py", False)],
)
def test_a_worker_of_rays_is_asked_even_without_a_title_and_a_helper_is_not(
    stuck: tuple[Settings, Process], tmp_path: Path, program: str, asked: bool
) -> None:
    settings, _ = stuck
    path = tmp_path / "site-packages" / "ray" / program
    path.parent.mkdir(parents=True)
    path.write_text("import time\nprint('runs', flush=True)\ntime.sleep(60)")
    env = {**os.environ, NODE_MARK: settings.node_mark}
    said = tmp_path / "said too"
    child = Process("of Ray", [sys.executable, str(path)], env=env, log_to=said)
    try:
        eventually(lambda: "runs" in said.read_text())
        assert (child.pid in [one.pid for one in stacks.of_the_job(settings)]) is asked
    finally:
        child.stop(grace=0.1)


def test_a_reader_of_stacks_that_hangs_itself_is_ended(
    stuck: tuple[Settings, Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = stuck
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(stacks, "beside_interpreter", lambda _: str(program))
    monkeypatch.setattr(stacks, "EACH_SECONDS", 0.2)
    began = time.monotonic()
    assert stacks.collect(settings, tmp_path / "stacks.txt") == 1
    assert time.monotonic() - began < 10
    text = (tmp_path / "stacks.txt").read_text()
    assert "did not end within 0.2 s" in text
    assert "threads, in the kernel it waits in" in text


def test_the_job_is_not_ended_before_its_workers_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFiles(tmp_path)
    run.logs.mkdir()
    late = stacks.path_of(run, 2, "w1")
    timer = threading.Timer(0.3, late.write_text, ["x"])
    timer.start()
    stacks.await_workers(run, 2, ["w1"])
    assert late.exists()
    monkeypatch.setattr(stacks, "WORKERS_SECONDS", 0.2)
    stacks.await_workers(run, 2, ["w1", "w2"])  # w2 hangs itself


@pytest.mark.parametrize("module", ["ray_start start --head", "ray_dashboard dashboard.py"])
def test_rays_own_programs_under_our_names_hang_no_job(module: str) -> None:
    assert stacks.OF_RAY.search(f"7 /v/bin/python -P -m trainer.cluster.{module}")
