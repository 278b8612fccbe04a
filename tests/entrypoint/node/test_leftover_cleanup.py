"""What a worker does when a job is over: real processes, a real control port."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from entrypoint.cluster.client import ControlClient
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.node.member import end_leftovers
from entrypoint.processes.inbox import JobOver
from entrypoint.processes.process import marks
from tests.support.control import TOKEN, Head
from tests.support.waiting import eventually

OVER = "rollcall-1"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    environ = {"RAY_WORKER": "1", "HEAD_POD_ID": "abc", "ROLLCALL_NODE_NAME": "w1"}
    own = f"/tmp/rollcall-sweep-{os.getpid()}"
    return read_settings(
        {**environ, "ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_RAY_TEMP_DIR": own}
    )


@pytest.fixture
def worker_with_child(settings: Settings, tmp_path: Path) -> Iterator[psutil.Process]:
    """A Ray worker below a raylet, with a child that no daemon is."""
    raylet, child = tmp_path / "raylet", tmp_path / "child"
    raylet.symlink_to("/bin/bash")
    work = f"sleep 61 & echo $! > {child}; wait"
    words = f"(exec -a ray::Member /bin/bash -c '{work}') & wait"
    env = {**os.environ, **marks(settings.node_mark), "RAY_JOB_ID": "01000000"}
    started = subprocess.Popen([str(raylet), "-c", words], env=env, start_new_session=True)
    eventually(lambda: child.exists() and child.read_text().strip() != "")
    yield psutil.Process(int(child.read_text())).parent() or psutil.Process(started.pid)
    os.killpg(started.pid, 9)
    started.wait()


def test_children_of_a_worker_that_ray_ends_late_are_ended_too(
    settings: Settings, worker_with_child: psutil.Process, head: Head
) -> None:
    (child,) = worker_with_child.children()
    head.control.sweep(OVER)
    time.sleep(1.5)  # the kernel's clock has whole seconds
    killed: list[float] = []

    class Client(ControlClient):
        """Kills the Ray worker once the head has its first answer."""

        def tell_left_over(self, node: str, job: str, left: str) -> None:
            super().tell_left_over(node, job, left)
            if not killed:
                killed.append(time.monotonic())
                worker_with_child.kill()

    end_leftovers(settings, Client("127.0.0.1", head.port, TOKEN), JobOver(OVER, time.time()))
    assert killed, "the head does not wait for Ray"
    assert head.control.left_over() == {"w1": f"1 process ({child.pid}: sleep 61)"}
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_worker_on_which_nothing_was_left_answers_at_once(settings: Settings, head: Head) -> None:
    head.control.sweep(OVER)
    began = time.monotonic()
    end_leftovers(settings, head.client(), JobOver(OVER, time.time()))
    assert time.monotonic() - began < 5
    assert head.control._workers.sweep.answered() == {"w1"}
    assert head.control.left_over() == {}
