"""Ray's own dashboard, whose modules are forks of one process."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx
import psutil
import pytest

from contract.launch.programs import Program
from entrypoint.processes.process import kill
from tests.support.repository import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PATHS = ("api/v0/nodes", "api/jobs/", "nodes?view=summary", "api/serve/applications/", "events")
"""Each is another module's."""


@pytest.fixture
def head(port_block: int) -> Iterator[tuple[psutil.Popen, str]]:
    """The process of Ray's start on a head, and the address of its dashboard."""
    port = port_block
    home = tempfile.mkdtemp(prefix="rollcall-")  # Ray's sockets need short paths
    slow = ("DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT", "DASHBOARD_STARTUP_TIMEOUT_S")
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": home,
        "RAY_raylet_start_wait_time_s": "300",
        **{f"RAY_{name}": "300" for name in slow},
    }
    names = ("port", "ray-client-server-port", "node-manager-port", "dashboard-agent-listen-port")
    words = [
        *("start", "--head", "--block", "--disable-usage-stats", "--include-dashboard=true"),
        *(f"--dashboard-port={port}", f"--temp-dir={home}", "--node-ip-address=127.0.0.1"),
        *(f"--{name}={port + 1 + number}" for number, name in enumerate(names)),
    ]
    ray = psutil.Popen([sys.executable, "-P", "-m", Program.RAY_START, *words], env=env)
    try:
        yield ray, f"http://127.0.0.1:{port}"
    finally:
        with suppress(psutil.NoSuchProcess):
            kill([*ray.children(recursive=True), ray])
        ray.wait()
        shutil.rmtree(home, ignore_errors=True)


def until(done: Callable[[], bool]) -> None:
    while not done():  # the test's own timeout ends it
        time.sleep(0.2)


def answers(address: str) -> bool:
    try:
        return all(httpx.get(f"{address}/{path}", timeout=30).is_success for path in PATHS)
    except httpx.HTTPError:
        return False


def modules(ray: psutil.Process) -> list[psutil.Process]:
    """The processes of the dashboard's modules, which give themselves a title."""
    found = []
    for one in ray.children(recursive=True):
        try:
            if one.cmdline()[0].startswith("ray-dashboard-"):
                found.append(one)
        except (psutil.Error, IndexError):
            continue
    return found


def test_the_modules_of_the_dashboard_are_forks_that_answer_come_back_and_end_with_it(
    head: tuple[psutil.Popen, str],
) -> None:
    ray, address = head
    until(lambda: ray.poll() is not None or answers(address))
    assert ray.poll() is None
    forks = modules(ray)
    assert len(forks) > len(PATHS)
    (server,) = {one.ppid() for one in forks}
    dashboard = psutil.Process(server).parent()
    assert dashboard is not None
    assert Program.RAY_DASHBOARD in dashboard.cmdline()

    kill([one for one in forks if "StateHead" in one.cmdline()[0]])
    until(lambda: len(modules(ray)) == len(forks) and answers(address))

    forks = modules(ray)
    dashboard.kill()
    until(lambda: not any(one.is_running() for one in forks))
