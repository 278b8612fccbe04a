"""What a job leaves behind on a node: real processes that have lost their parents."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.processes import leftovers, process
from tests.support.waiting import eventually

DOUBLE_FORK = "(setsid sleep 60 > /dev/null 2>&1 & echo $! > {file}) &"
Starts = Callable[..., psutil.Process]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    own = f"/tmp/rollcall-left-{os.getpid()}"
    environ = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_RAY_TEMP_DIR": own}
    return read_settings({**environ, "ROLLCALL_RECIPE": "command"}, ["true"])


@pytest.fixture
def starts(settings: Settings, tmp_path: Path) -> Iterator[Starts]:
    """Starts a process of a job, by the shell's words, and returns it; all are ended."""
    found: list[psutil.Process] = []

    def start(words: str = DOUBLE_FORK, **variables: str) -> psutil.Process:
        file = tmp_path / f"pid-{len(found)}"
        env = {**os.environ, **process.marks(settings.node_mark), **variables}
        subprocess.Popen(["/bin/sh", "-c", words.format(file=file)], env=env)
        eventually(lambda: file.exists() and file.read_text().strip() != "")
        found.append(psutil.Process(int(file.read_text())))
        return found[-1]

    yield start
    for one in found:
        with suppress(psutil.Error):
            one.kill()


def ended(one: psutil.Process) -> bool:
    try:
        return bool(one.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_daemon_of_a_job_that_is_over_is_ended_and_named(
    settings: Settings, starts: Starts
) -> None:
    of_driver, of_worker = starts(ROLLCALL_ATTEMPT="1"), starts(RAY_JOB_ID="02000000")
    said = leftovers.end(settings)
    assert ended(of_driver)
    assert ended(of_worker)
    assert said.startswith("2 processes (")
    assert f"{of_driver.pid}: sleep 60" in said
    assert leftovers.end(settings) == ""


def test_a_daemon_that_ignores_sigterm_is_killed(settings: Settings, starts: Starts) -> None:
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    )
    words = f"(setsid {sys.executable} -c '{code}' > {{file}}.up 2>&1 & echo $! > {{file}}) &"
    stubborn = starts(words, ROLLCALL_ATTEMPT="1")
    eventually(lambda: any(Path(f).stat().st_size for f in _up(settings)))
    assert leftovers.end(settings).startswith("1 process (")
    assert ended(stubborn)


def _up(settings: Settings) -> list[Path]:
    return list(settings.run_dir.glob("pid-*.up"))


def test_what_no_job_has_started_and_what_ray_still_has_is_left_alone(
    settings: Settings, starts: Starts, tmp_path: Path
) -> None:
    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sh")
    ours = starts()
    words = f"{raylet} -c 'sleep 60 & echo $! > {{file}}; wait' &"
    of_ray = starts(words, RAY_JOB_ID="01000000")
    parent = of_ray.parent()
    assert parent is not None
    assert parent.name() == "raylet"
    try:
        assert leftovers.end(settings) == ""
        assert not ended(ours)
        assert not ended(of_ray)
    finally:
        parent.kill()
    eventually(lambda: leftovers.end(settings) != "", seconds=10)  # it has lost its parent
    assert ended(of_ray)


def test_what_began_after_a_moment_is_of_the_next_job(settings: Settings, starts: Starts) -> None:
    earlier = starts(RAY_JOB_ID="01000000")
    time.sleep(1.5)  # the kernel's clock has whole seconds
    moment = time.time()
    time.sleep(1.5)
    later = starts(RAY_JOB_ID="02000000")
    assert leftovers.end(settings, moment).startswith(f"1 process ({earlier.pid}: ")
    assert not ended(later)


def test_what_is_named_has_neither_line_breaks_nor_control_characters(
    settings: Settings, starts: Starts
) -> None:
    name = 'exec -a "two\n\x1b[2Jlines" sleep 60'
    words = f"(setsid bash -c '{name}' > /dev/null 2>&1 & echo $! > {{file}}) &"
    left = starts(words, ROLLCALL_ATTEMPT="1")
    eventually(lambda: left.name() == "sleep")
    assert leftovers.end(settings) == f"1 process ({left.pid}: two ?[2Jlines 60)"


def test_while_a_job_runs_only_what_earlier_jobs_have_left_is_ended(
    settings: Settings, starts: Starts, tmp_path: Path
) -> None:
    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sh")
    earlier, own = starts(RAY_JOB_ID="ff010000"), starts(RAY_JOB_ID="00020000")
    assert leftovers.end_of_earlier_jobs(settings) == ""  # no job runs here
    words = f"{raylet} -c 'sleep 60 & echo $! > {{file}}; wait' &"
    worker = starts(words, RAY_JOB_ID="00020000")
    started_for_no_job = starts(words, RAY_JOB_ID="ffffffff")
    try:
        assert leftovers.end_of_earlier_jobs(settings).startswith(f"1 process ({earlier.pid}: ")
        assert ended(earlier)
        assert not ended(own)
        assert not ended(worker)
    finally:
        for one in (worker, started_for_no_job):
            parent = one.parent()
            assert parent is not None
            parent.kill()
