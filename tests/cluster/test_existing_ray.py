"""A supervisor beside a real Ray of two nodes that it did not start."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from contract.exit_codes import ExitCode
from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint.processes.process import Process, kill
from entrypoint.processes.programs import program
from tests.support.existing_ray import ExistingRay, environment
from tests.support.watch import Watch, assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(480)]

JOB = Path(__file__).parents[1] / "support" / "node_cluster_job.py"
TOKEN = "a-token-that-only-this-ray-has"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExistingRay]:
    ray = ExistingRay(tmp_path_factory.mktemp("ray"), TOKEN)
    try:
        ray.start(0)
        wait_for_nodes(ray, 1)
        ray.start(1)
        wait_for_nodes(ray, 2)
        yield ray
    finally:
        ray.close()


def wait_for_nodes(ray: ExistingRay, count: int, within: float = 180) -> None:
    deadline = time.monotonic() + within
    while True:
        try:
            if ray.alive() == count:
                return
        except Exception:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, ray.log(0)
        time.sleep(0.3)


def supervise(ray: ExistingRay, root: Path, **more: str) -> tuple[Watch, Process]:
    run = RunFiles(root / "run")
    run.root.mkdir(exist_ok=True)
    console = root / "console.log"
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    supervisor = Process(
        "supervisor",
        program(Program.ROLLCALL, "up", "--", sys.executable, str(JOB)),
        env=environment(ray, run.root, **{**auth, **more}),
        log_to=console,
    )
    return Watch(run, lambda: console.read_text()[-6000:]), supervisor


def drivers() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if str(JOB) in line and line[:1] == [sys.executable] and Program.ROLLCALL not in line:
            found.append(process)
    return found


@pytest.mark.faults
def test_a_run_resumes_after_its_driver_and_its_supervisor_are_killed_and_leaves_ray_alone(
    there: ExistingRay, tmp_path: Path
) -> None:
    run, supervisor = supervise(there, tmp_path)
    try:
        run.until(lambda: run.step >= 7, "step 7", within=90)
        kill(drivers())
        run.resumes(1, within=60)
        kill([psutil.Process(supervisor.pid)])  # its job goes on
        supervisor.wait(10)
        run, supervisor = supervise(there, tmp_path)
        run.resumes(2, within=90)
        (run.run.root / "finish").touch()
        run.until(lambda: not supervisor.running, "end", within=60)
    finally:
        kill([psutil.Process(supervisor.pid)] if supervisor.running else [])
    assert supervisor.exit_code == ExitCode.FINISHED, run.report()
    assert_no_step_is_lost_or_done_twice(run.run)
    assert len(run.events("attempt")) == 3
    assert "resume 5" in (run.run.logs / "attempt-2.log").read_text() or run.events("resume")
    assert there.alive() == 2
    assert there.running_jobs() == []
    said = (tmp_path / "console.log").read_text()
    assert TOKEN not in said + run.run.journal.read_text()
    assert "Traceback" not in said
