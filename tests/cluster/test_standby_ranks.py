"""Ranks take processes that stood by with their imports done, within an attempt and between two."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from contract.launch.standby_ranks import VARIABLE
from entrypoint.processes.process import kill
from tests.support.node_cluster import HEAD, Cluster
from tests.support.ray_workers import actor_of
from tests.support.tiny_job import tiny_job
from tests.support.watch import assert_no_step_is_lost_or_done_twice

ROLES = ("policy-0", "engine-0")


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_the_ranks_of_a_new_attempt_and_a_lost_rank_take_processes_that_stood_by(
    tmp_path: Path,
) -> None:
    job = [*tiny_job(tmp_path, 100_000), "--save_steps", "5", "--max_ckpt_num", "2"]
    cluster = Cluster(tmp_path / "run", workers=0, job=job, ROLLCALL_RECIPE="builtin")
    cluster.plain = True
    try:
        cluster.start(HEAD)
        first = all_stand_by(cluster)
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


def all_stand_by(cluster: Cluster) -> set[int]:
    """The processes that stand by, once there are as many as ranks."""
    cluster.until(lambda: len(standing_by(cluster)) == len(ROLES), "standby ranks", within=180)
    return standing_by(cluster)


def standing_by(cluster: Cluster) -> set[int]:
    """The processes for ranks that have imported torch, and that no rank has taken."""
    found = set()
    for process in cluster.processes(HEAD):
        with suppress(psutil.Error):
            has_torch = any("libtorch" in Path(one.path).name for one in process.memory_maps())
            if has_torch and VARIABLE in process.environ() and not actor_of(process):
                found.add(process.pid)
    return found


def ranks(cluster: Cluster) -> dict[str, int]:
    """Role and number → the process."""
    return {actor_of(process): process.pid for process in cluster.processes(HEAD)}
