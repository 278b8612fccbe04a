"""Ranks take processes that stood by with their imports done, within an attempt and between two."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from contract.launch import warm
from contract.launch.standby_ranks import VARIABLE
from entrypoint.processes.process import kill
from tests.support.node_cluster import HEAD, Cluster, name_of, parent_of
from tests.support.ray_workers import actor_of
from tests.support.tiny_job import tiny_job
from tests.support.watch import assert_no_step_is_lost_or_done_twice

WORKER = 1
ROLES = ("policy-0", "engine-0")


@pytest.mark.cluster
@pytest.mark.timeout(400)
@pytest.mark.faults
def test_the_ranks_of_a_new_attempt_and_a_lost_rank_take_processes_that_stood_by(
    tmp_path: Path,
) -> None:
    job = [*tiny_job(tmp_path, 100_000), "--save_steps", "5", "--max_ckpt_num", "2"]
    cluster = Cluster(tmp_path / "run", workers=0, job=job, ROLLCALL_RECIPE="builtin")
    cluster.plain = True
    try:
        cluster.start(HEAD)
        first = all_stand_by(cluster)
        assert first <= forks(cluster)
        kill(cluster.named(HEAD, "trainer"))
        cluster.resumes(1, within=90)
        assert {ranks(cluster)[role] for role in ROLES} == first
        second = all_stand_by(cluster)
        assert not first & second
        kill([psutil.Process(ranks(cluster)["engine-0"])])
        cluster.event("engine-replaced", within=60)
        cluster.goes_on(within=60)
        assert ranks(cluster)["engine-0"] in second
        assert cluster.ask("stop").returncode == 0
        assert cluster.exit_codes(within=60) == {HEAD: 143}
        assert cluster.left() == []
    finally:
        cluster.close()
    assert_no_step_is_lost_or_done_twice(cluster.run)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.faults  # beside other tests, a start may not wait for the warm process
def test_the_ranks_of_a_node_that_lost_its_head_are_forks_of_its_warm_process(
    tmp_path: Path,
) -> None:
    job = [*tiny_job(tmp_path, 100_000), "--save_steps", "5", "--max_ckpt_num", "2"]
    cluster = Cluster(tmp_path / "run", workers=1, job=job, ROLLCALL_RECIPE="builtin")
    cluster.plain = True
    cluster.own[HEAD] = {"ROLLCALL_NUM_CPUS": "0"}
    try:
        cluster.start(HEAD, WORKER)
        all_stand_by(cluster, WORKER)
        (process,) = warm_processes(cluster, WORKER)
        cluster.kill(HEAD)
        assert not cluster.processes(HEAD)
        cluster.start(HEAD)
        cluster.resumes(1, within=240)
        assert warm_processes(cluster, WORKER) == {process}
        started = {role: ranks(cluster, WORKER)[role] for role in ROLES}
        assert {*started.values()} <= forks(cluster, WORKER)
        (driver,) = cluster.named(HEAD, "trainer")
        assert driver.pid in forks(cluster, HEAD)
        all_stand_by(cluster, WORKER)
        kill([psutil.Process(process)])
        cluster.goes_on(within=90)
        assert ranks(cluster, WORKER) | started == ranks(cluster, WORKER)
        kill([psutil.Process(started["engine-0"])])
        cluster.event("engine-replaced", within=60)
        # The one that stands by in place of the one that was taken is asked of a new process.
        cluster.until(lambda: bool(warm_processes(cluster, WORKER)), "another one", within=90)
        assert cluster.ask("stop").returncode == 0
        assert cluster.exit_codes(within=60) == {HEAD: 143, WORKER: 143}
        assert cluster.left() == []
    finally:
        cluster.close()
    assert_no_step_is_lost_or_done_twice(cluster.run)


def warm_processes(cluster: Cluster, number: int) -> set[int]:
    """The processes out of which a node forks; not the keepers of their forks."""
    found = {one.pid: one for one in cluster.processes(number) if name_of(one) == warm.NAME}
    return {pid for pid, one in found.items() if parent_of(one) not in found}


def forks(cluster: Cluster, number: int = HEAD) -> set[int]:
    """The processes that a node has forked, and that are none of its keepers."""
    found = {one.pid: one for one in cluster.processes(number)}
    keepers = {pid for pid, one in found.items() if name_of(one) == warm.NAME}
    return {pid for pid, one in found.items() if parent_of(one) in keepers} - keepers


def all_stand_by(cluster: Cluster, number: int = HEAD) -> set[int]:
    """The processes that stand by, once there are as many as ranks."""
    found = partial(standing_by, cluster, number)
    cluster.until(lambda: len(found()) == len(ROLES), "standby ranks", within=180)
    return found()


def standing_by(cluster: Cluster, number: int) -> set[int]:
    """The processes for ranks that have imported torch, and that no rank has taken."""
    found = set()
    for process in cluster.processes(number):
        with suppress(psutil.Error):
            has_torch = any("libtorch" in Path(one.path).name for one in process.memory_maps())
            if has_torch and VARIABLE in process.environ() and not actor_of(process):
                found.add(process.pid)
    return found


def ranks(cluster: Cluster, number: int = HEAD) -> dict[str, int]:
    """Role and number → the process."""
    return {actor_of(process): process.pid for process in cluster.processes(number)}
