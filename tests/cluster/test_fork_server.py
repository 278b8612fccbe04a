"""By default each process of the job imports for itself; with the setting they are forks."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from entrypoint.processes.process import find_marked, kill
from tests.support.fork_server import DEFAULT, FORK_SERVER
from tests.support.node_cluster import HEAD, Cluster, command_line, parent_of, result
from tests.support.tiny_job import tiny_job
from tests.support.watch import assert_no_step_is_lost_or_done_twice

STEPS = 100_000


@pytest.mark.faults
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_by_default_a_killed_driver_resumes_and_the_run_ends_without_a_fork_server(
    tmp_path: Path,
) -> None:
    job = [*tiny_job(tmp_path, 60), "--save_steps", "5", "--max_ckpt_num", "2"]
    cluster = Cluster(tmp_path / "run", workers=0, job=job, ROLLCALL_RECIPE="builtin", **DEFAULT)
    try:
        cluster.start(HEAD)
        cluster.until(lambda: cluster.step >= 4, "step 4", within=120)
        assert shims(cluster) == []
        kill(cluster.named(HEAD, "trainer"))
        cluster.resumes(1, within=90)
        assert shims(cluster) == []
        assert cluster.exit_codes(within=90) == {HEAD: 0}, cluster.consoles()
        assert "fork server" not in cluster.said(HEAD)
        assert list(cluster.run.logs.glob("fork-server-*")) == []
        assert (result(cluster)["outcome"], result(cluster)["steps"]) == ("finished", 60)
    finally:
        cluster.close()
    assert_no_step_is_lost_or_done_twice(cluster.run)


def shims(cluster: Cluster) -> list[list[str]]:
    """Command lines of shims and of the fork server."""
    lines = map(command_line, cluster.processes(HEAD))
    return [line for line in lines if "-IS" in line[1:2] or "fork_server" in " ".join(line)]


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_new_attempt_is_made_of_forks_also_once_the_server_or_a_starting_worker_was_killed(
    tmp_path: Path,
) -> None:
    # Each attempt goes on from near where the last one was, whatever that had the time for.
    job = [*tiny_job(tmp_path, STEPS), "--save_steps", "5", "--max_ckpt_num", "2"]
    env = {"ROLLCALL_RECIPE": "builtin", **FORK_SERVER}
    cluster = Cluster(tmp_path / "run", workers=0, job=job, **env)
    try:
        cluster.start(HEAD)
        cluster.until(lambda: cluster.step >= 4, "step 4", within=120)
        server = server_of(cluster)
        all_are_forks_of(server, cluster)
        goes_on_without_its_driver(cluster)
        all_are_forks_of(server, cluster)
        kill(cluster.named(HEAD, "trainer"))
        kill([a_worker_that_starts(cluster, server)])
        goes_on(cluster, within=55)  # Ray alone would wait for it for 60 s
        kill([server])
        ready = "the fork server is ready"
        cluster.until(lambda: cluster.said(HEAD).count(ready) == 2, ready, within=75)
        goes_on_without_its_driver(cluster)
        all_are_forks_of(server_of(cluster), cluster)
        assert cluster.ask("stop").returncode == 0
        assert cluster.exit_codes(within=60) == {HEAD: 143}
        assert cluster.left() == []
    finally:
        cluster.close()
    assert_no_step_is_lost_or_done_twice(cluster.run)


def goes_on_without_its_driver(cluster: Cluster) -> None:
    kill(cluster.named(HEAD, "trainer"))
    goes_on(cluster, within=90)


def goes_on(cluster: Cluster, within: float) -> None:
    step = cluster.step
    cluster.until(lambda: cluster.step >= step + 4, f"step {step + 4}", within=within)


def a_worker_that_starts(cluster: Cluster, server: psutil.Process) -> psutil.Process:
    """It has no title of Ray's yet."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in server.children():
            if any(word.endswith("default_worker.py") for word in command_line(process)):
                return process
        time.sleep(0.01)
    raise AssertionError(f"no worker is started\n{cluster.consoles()}")


def server_of(cluster: Cluster) -> psutil.Process:
    """Not a fork of it that has not taken its own variables yet."""
    env = cluster.environment(HEAD)
    mark = f"{env['ROLLCALL_NODE_NAME']}@{env['ROLLCALL_RAY_TEMP_DIR']}/fork-server"
    entrypoint = cluster.nodes[HEAD].pid
    (server,) = [process for process in find_marked(mark) if parent_of(process) == entrypoint]
    return server


def all_are_forks_of(server: psutil.Process, cluster: Cluster) -> None:
    """Waited for: Ray takes a title away as it changes it, for a moment."""
    wanted = dict.fromkeys(("driver", "policy", "engine"), server.pid)
    cluster.until(lambda: parents(cluster) == wanted, "job of forks", within=30)


def parents(cluster: Cluster) -> dict[str, int]:
    """Role → the parent of its process."""
    (driver,) = cluster.named(HEAD, "trainer")
    found = {"driver": parent_of(driver)}
    for process in cluster.processes(HEAD):
        title = " ".join(command_line(process))
        for role in ("policy", "engine"):
            if title.startswith(f"ray::{role}-0"):
                found[role] = parent_of(process)
    return found
