"""The process of a node out of which its Ray's workers and its driver are forked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract.launch import warm
from contract.launch.standby_ranks import VARIABLE
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.processes import process, warm_process
from entrypoint.processes.warm_process import WarmProcess
from tests.support.waiting import eventually
from trainer.cluster.warm.shim import WORKER

TELL = """
import os, sys, threading
threads = ",".join(sorted(one.name for one in threading.enumerate()))
print("torch" in sys.modules, os.environ["A"], sys.executable, threads)
"""
NOT_FORKED = ["False", "b", sys.executable, "MainThread"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    own = f"/tmp/rollcall-warm-{os.getpid()}"
    environ = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_RAY_TEMP_DIR": own}
    return read_settings({**environ, "ROLLCALL_RECIPE": "command"}, ["true"])


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    path = tmp_path / WORKER.removeprefix("/")
    path.parent.mkdir(parents=True)
    path.write_text(TELL)
    return path


def asked(settings: Settings, worker: Path, **variables: str) -> list[str]:
    """What a worker says that Ray starts with these variables."""
    python = warm_process.python(settings)
    assert python is not None
    command = [str(python), str(worker)]
    env = {**os.environ, **process.marks(settings.node_mark), "A": "b", **variables}
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    return said.stdout.split()


def log_of(settings: Settings) -> str:
    path = RunFiles(settings.run_dir).logs / f"warm-{settings.node_name}.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
def test_it_starts_once_a_standby_rank_asks_and_ends_with_the_node(
    settings: Settings, worker: Path
) -> None:
    with WarmProcess(settings, os.environ, at_once=False):
        assert asked(settings, worker) == NOT_FORKED
        assert not process.find_marked(warm_process.mark(settings))
        assert log_of(settings) == ""
        asked(settings, worker, **{VARIABLE: "1"})  # a slow machine answers it too late
        eventually(lambda: log_of(settings) != "", seconds=120)
        # It answers for where it stands, as each process with torch does.
        assert asked(settings, worker) == ["True", "b", sys.executable, "MainThread,standing"]
        of_other_home = asked(settings, worker, HOME="/nowhere")
        assert of_other_home == NOT_FORKED
        assert "not forked, as HOME may be read by an import" in log_of(settings)
    assert not process.find_marked(warm_process.mark(settings))
    assert warm_process.python(settings) is None


def test_one_that_cannot_import_is_not_started_again(
    settings: Settings, worker: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("raise OSError('no disk')")
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with WarmProcess(settings, env, at_once=True):
        eventually(lambda: "no disk" in caplog.text)
        assert not warm.wanted(warm_process.home(settings)).exists()
        assert asked(settings, worker) == NOT_FORKED
