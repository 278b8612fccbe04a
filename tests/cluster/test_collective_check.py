"""Of three Ray nodes one can start no worker: the collective check names it, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from tests.support.ray_nodes import cluster_at

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

NAMES = ("a", "b", "c")


@pytest.mark.faults
def test_a_node_whose_ray_starts_no_process_is_named_and_no_other_is_at_fault() -> None:
    with cluster_at(*({"node_name": name, "num_cpus": 1} for name in NAMES)) as cluster:
        sockets = {node["NodeName"]: node["RayletSocketName"] for node in ray.nodes()}
        # What each worker connects to first: a cleaner of /tmp deletes it.
        Path(sockets["b"]).unlink()
        check = [
            sys.executable,
            "-m",
            "trainer.cluster.diagnostics.allreduce",
            "--nodes",
            ",".join(NAMES),
        ]
        done = subprocess.run(
            [*check, "--address", cluster.address, "--timeout", "20", "--patience", "20"],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    (row,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert row["verdict"] == "fail"
    assert [fault["nodes"] for fault in row["faults"]] == [["b"]]
    assert row["faults"][0]["unstarted"]
    assert row["faults"][0]["sentence"] == "Ray on b has started no process within 20 s"
    assert row["seconds"] < 60
