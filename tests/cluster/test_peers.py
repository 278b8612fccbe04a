"""What the nodes hold in memory is gone on from, under the supervisor's eyes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from entrypoint.processes.process import kill
from tests.support.node_cluster import HEAD, Cluster
from tests.support.tiny_job import tiny_job
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

STEPS = 150


def test_no_finished_step_is_lost_with_the_driver_with_the_head_or_with_all_nodes(
    tmp_path: Path,
) -> None:
    """And there is no checkpoint on disk before the last step."""
    job = tiny_job(tmp_path, STEPS)
    cluster = Cluster(tmp_path / "run", workers=1, job=job, ROLLCALL_RECIPE="builtin")

    def head_loses_its_power() -> None:
        cluster.kill(HEAD)
        cluster.start(HEAD)

    def all_are_told_to_stop_while_nobody_trains() -> None:
        failures = len(cluster.events("failure"))
        kill(cluster.named(HEAD, "trainer"))
        cluster.event("failure", within=60, after=failures)
        cluster.terminate(HEAD)
        assert set(cluster.exit_codes(within=60).values()) == {ExitCode.STOPPED}
        assert cluster.run.kept.exists()
        cluster.start(HEAD, 1)

    try:
        cluster.start(HEAD, 1)
        cluster.until(lambda: cluster.step >= 4, "step 4", within=120)
        for loses in (
            lambda: kill(cluster.named(HEAD, "trainer")),
            head_loses_its_power,
            all_are_told_to_stop_while_nobody_trains,
        ):
            goes_on_from_the_last_finished_step(cluster, loses)
        assert cluster.exit_codes(within=120) == {HEAD: 0, 1: 0}, cluster.consoles()
    finally:
        cluster.close()
    assert_no_step_is_lost_or_done_twice(cluster.run)
    assert "from files of the nodes' memory" in cluster.events("restore")[-1]["sentence"]
    assert not cluster.run.kept.exists()
    assert [e["details"]["step"] for e in cluster.events("checkpoint")] == [STEPS]
    told = [*cluster.events("step"), *cluster.events("step-found")]
    assert sorted(e["details"]["step"] for e in told) == list(range(1, STEPS + 1))


def goes_on_from_the_last_finished_step(cluster: Cluster, loses: Callable[[], None]) -> None:
    """One more may have arrived before the driver could tell of it."""
    attempts = len(cluster.events("attempt"))
    loses()
    cluster.resumes(attempts, within=120)
    finished = max(e["details"]["step"] for e in cluster.events("step") if e["attempt"] <= attempts)
    resumed = cluster.events("resume")[-1]
    assert resumed["details"]["step"] in (finished, finished + 1), resumed["sentence"]
    assert "no finished step is lost" in resumed["sentence"]
