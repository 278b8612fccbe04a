"""Daemons that a job leaves on its nodes: ended when the job ends, on every node, and told."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from contract.journal import read_events
from tests.support.node_cluster import HEAD, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

JOB = Path(__file__).with_name("leaving_job.py")
WORKER = 1


@pytest.mark.faults
def test_what_a_job_leaves_on_head_and_worker_is_ended_as_it_ends(tmp_path: Path) -> None:
    job = (sys.executable, str(JOB))
    with closing(Cluster(tmp_path / "run", workers=1, job=job)) as cluster:
        cluster.start(HEAD, WORKER)
        assert cluster.exit_codes(within=240) == {HEAD: 0, WORKER: 0}, cluster.consoles()
        told = [(one["attempt"], one["details"]["node"]) for one in cluster.events("left-over")]
        assert sorted(told) == [(1, "head"), (1, "worker-1"), (2, "head"), (2, "worker-1")]
        events = list(read_events(cluster.run.journal))
        kinds = [one["kind"] for one in events if one["attempt"] == 1]
        assert kinds[kinds.index("left-over") :][:3] == ["left-over", "left-over", "failure"]
        for one in cluster.events("left-over"):
            where = "this node" if one["details"]["node"] == "head" else "worker-1"
            assert one["sentence"].startswith("the job, which has ended, has left 1 process (")
            assert one["sentence"].endswith(f": sleep 301) on {where}: ended")
