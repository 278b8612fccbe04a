"""A spare takes the place of a worker that is lost for ever, on real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.launch.places import MOVED
from tests.support.node_cluster import HEAD, Cluster
from tests.support.tiny_job import tiny_job
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

NODES = (1, 2)
"""A worker and a spare, whichever joins first."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A policy of two ranks, one on the head and one on the worker."""
    job = [*tiny_job(tmp_path, 100_000), "--actor_num_nodes", "2", "--save_steps", "50"]
    env = {"ROLLCALL_RECIPE": "builtin", "ROLLCALL_SPARE_WORKERS": "1"}
    cluster = Cluster(tmp_path / "run", workers=1, job=job, **env)
    cluster.plain = True
    yield cluster
    cluster.close()


def test_the_ranks_of_a_lost_worker_go_on_at_the_spare_in_the_same_attempt(
    cluster: Cluster,
) -> None:
    cluster.start(HEAD, *NODES)
    roll = cluster.event("roll", within=120)
    (worker,) = roll["details"]["present"]
    spare = next(f"worker-{n}" for n in NODES if f"worker-{n}" != worker)
    assert "1 of 1 worker and 1 spare are there" in roll["sentence"]
    cluster.until(lambda: cluster.step >= 3, "three steps", within=120)
    assert f"{spare} at" in (said := cluster.ask("status").stdout)
    assert "a spare" in said

    cluster.kill(int(worker[-1]))
    cluster.goes_on(within=120)
    (moved,) = cluster.events(MOVED)
    assert (moved["details"]["lost"], moved["details"]["node"]) == (worker, spare)
    assert not cluster.events("failure")
    assert len(cluster.events("attempt")) == 1
    cluster.until(
        lambda: "1 of 1 workers, 0 of 1 spares" in cluster.ask("status").stdout, "roll", within=30
    )

    cluster.start(int(worker[-1]))
    cluster.until(
        lambda: "1 of 1 workers, 1 spare" in cluster.ask("status").stdout, "spare", within=60
    )
    assert cluster.ask("stop").returncode == 0
    assert set(cluster.exit_codes(within=60).values()) == {143}
    assert_no_step_is_lost_or_done_twice(cluster.run)
