"""Ray takes the word of who knows that a node is dead, on a real cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import ActorDiedError

from contract.files import fd_store
from entrypoint.processes.process import kill
from trainer.cluster import placement, reach

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


class Worker:
    def ready(self) -> None:
        return None

    def work(self) -> None:
        time.sleep(600)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def declare_dead(cluster: Cluster, node: str) -> None:
    """Raises CalledProcessError if Ray still counts the node among the living."""
    words = ("-m", "trainer.cluster.diagnostics.declare_dead", node, "--address", cluster.address)
    subprocess.run([sys.executable, *words, "--why", "it was started again"], check=True)


@pytest.mark.parametrize("ours", [True, pytest.param(False, marks=pytest.mark.faults)])
def test_the_driver_has_a_node_buried_only_in_a_ray_that_rollcall_has_started(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    (node,) = [row["NodeID"] for row in ray.nodes() if row["Resources"].get("CPU")]
    if ours:
        monkeypatch.setenv(fd_store.VARIABLE, "/a/socket")
    else:
        monkeypatch.delenv(fd_store.VARIABLE, raising=False)
    reach.bury(node, "the work of worker-1 goes on at worker-2")
    assert (node not in placement.living_nodes()) is ours
    reach.bury(node, "Ray knows it")


def test_what_waits_for_a_buried_node_fails_at_once_and_says_why(cluster: Cluster) -> None:
    node = cluster.add_node(num_cpus=1)
    worker = ray.remote(num_cpus=1)(Worker).remote()
    ray.get(worker.ready.remote())
    (dead,) = [row["NodeID"] for row in ray.nodes() if row["Resources"].get("CPU")]
    pending = worker.work.remote()
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    frozen = [raylet, *raylet.children(recursive=True)]
    try:
        for process in frozen:
            with suppress(psutil.NoSuchProcess):
                process.suspend()  # as silent as a machine without power
        declare_dead(cluster, dead)
        since = time.monotonic()
        with pytest.raises(ActorDiedError, match="it was started again"):
            ray.get(pending, timeout=60)
        assert time.monotonic() - since < 8, "Ray's own checks take longer"
        declare_dead(cluster, dead)  # which Ray knows: it never answers
    finally:
        kill(frozen)
