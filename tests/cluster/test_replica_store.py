"""A holder as an actor of a real Ray."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import ray

from tests.support.ray_nodes import cluster_at, cluster_of, workers_of
from tests.support.sheets import sheet_of
from tests.support.tiny_run import to_argv
from trainer.checkpoint import replica_ring, replication
from trainer.checkpoint.protocol import Receipt, StoreName, Targets
from trainer.checkpoint.replica_store import view
from trainer.checkpoint.replication import Replicator
from trainer.checkpoint.writer import DriverState, RunState
from trainer.cluster.shared_memory import Segment
from trainer.cluster.tcp_stream import SECRET_BYTES, Server, StreamSource
from trainer.config.parse import parse

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def test_a_holder_says_what_it_has_and_receives_more_while_a_share_does_not_come() -> None:
    """As where the network of a rank's node is cut in the middle of it."""
    segment = Segment(99)
    view(segment)[:] = np.arange(99)
    older, lost = sheet_of(segment, 1), sheet_of(segment, 2)
    came = replace(lost, rank=0)
    with socket.create_server(("127.0.0.1", 0)) as listener, cluster_of({"num_cpus": 1}):
        host, port = listener.getsockname()
        silent = StreamSource(host, port, bytes(SECRET_BYTES))
        (holder,) = replica_ring.build("a run", ray.nodes(), memory=1, goes_on=False).values()
        replica_ring.answer(holder.attach.remote(older, segment.address))
        waits = replica_ring.receive(holder, lost, silent)
        connection, _ = listener.accept()
        with connection:
            assert ray.get(holder.manifests.remote(), timeout=30) == [older]
            server = Server(segment.buffer, port=0)
            ray.get(replica_ring.receive(holder, came, server.source), timeout=30)
            assert ray.get(holder.manifests.remote(), timeout=30) == [older, came]
            assert ray.wait([waits], timeout=0)[0] == []
        replica_ring.release("a run")


STARTS_STORES = """
import ray
from trainer.checkpoint import replica_ring
ray.init()
for store in replica_ring.build("a run", ray.nodes(), memory=1, goes_on=False).values():
    ray.get(store.held.remote())
"""


class Rank:
    """A rank that has copied step 1."""

    def replicate(self, ring: tuple[StoreName, ...]) -> Receipt:
        from trainer.checkpoint.replica_client import replicate
        from trainer.checkpoint.staging import HostBuffer

        to = Targets("an attempt", 1, {"policy": 1}, "{}", None, ring)
        return replicate(HostBuffer(64), "policy", 0, to)


@pytest.mark.faults
def test_a_new_rank_can_be_told_of_a_dead_store_whose_job_has_ended() -> None:
    with cluster_at({"num_cpus": 1, "node_name": "a"}, {"num_cpus": 1, "node_name": "b"}) as nodes:
        earlier = {"RAY_ADDRESS": nodes.address} | {"PATH": "/usr/bin:/bin"}
        subprocess.run([sys.executable, "-c", STARTS_STORES], env=earlier, check=True, timeout=60)
        ring = tuple(replica_ring.living("a run"))
        nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
        deadline = time.monotonic() + 30
        while len(left := replica_ring.living("a run")) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for store in left.values():
            ray.kill(store)  # with the last actor of that job, Ray forgets the class
        rank = ray.remote(Rank).remote()
        receipt = ray.get(rank.replicate.remote(ring), timeout=60)
        assert "Failed to look up actor" in receipt.fault


def test_a_run_that_goes_back_to_a_step_keeps_later_ones_until_they_are_discarded(
    tmp_path: Path,
) -> None:
    needed = {"pretrain": "o/m", "prompt_data": "o/p", "remote_rm_url": "arithmetic"}
    config = parse(to_argv(needed | {"run_dir": tmp_path, "load_step": 1}))
    segment = Segment(99)
    with cluster_of({"num_cpus": 1}):
        named = replica_ring.namespace_of(config)
        (holder,) = replica_ring.build(named, ray.nodes(), memory=1, goes_on=False).values()
        later = replace(sheet_of(segment, 2), rank=0, ranks={"policy": 1})
        replica_ring.answer(holder.attach.remote(later, segment.address))
        peers = Replicator(config)
        held = peers.newest()
        assert held is not None
        assert held.step == 2
        peers.discard()
        assert peers.newest() is None


class Told:
    def result(self) -> list[Receipt]:
        return [Receipt(99)]


@dataclass
class Ranks:
    """A group whose ranks are told where the shards of a step go."""

    told: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return 1

    def call_background(self, method: object, to: Targets) -> Told:
        self.told.append(to.step)
        return Told()


@pytest.mark.faults
def test_a_step_is_not_finished_if_a_store_ends_before_its_shards_outlive_ray(
    tmp_path: Path,
) -> None:
    """As where a head was frozen so long that the Rays of its workers ended: both copies go."""
    needed = {"pretrain": "o/m", "prompt_data": "o/p", "remote_rm_url": "arithmetic"}
    config = parse(to_argv(needed | {"run_dir": tmp_path, "load_checkpoint": True}))
    learners = cast(dict[str, Any], {"policy": Ranks()})

    def replicate(step: int) -> None:
        peers.replicate(DriverState(RunState(step=step, seed=0, prompts={})), learners)

    with cluster_of({"num_cpus": 1}, {"num_cpus": 1}):
        peers = Replicator(config)
        replicate(1)
        assert peers.wait()
        replicate(2)
        for store in replica_ring.living(replica_ring.namespace_of(config)).values():
            ray.kill(store)
        assert not peers.wait()
        assert peers.complete == 1
        replicate(3)
        assert peers.wait()
        assert peers.complete == 3


@pytest.mark.faults
def test_no_shard_is_sent_while_a_store_may_still_delete_what_is_not_of_the_attempt_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request to keep that attempt's snapshot alone is executed late."""
    monkeypatch.setattr(replication, "KEEP_SECONDS", 0.5)
    needed = {"pretrain": "o/m", "prompt_data": "o/p", "remote_rm_url": "arithmetic"}
    config = parse(to_argv(needed | {"run_dir": tmp_path, "load_checkpoint": True}))
    segment, ranks = Segment(99), Ranks()
    learners = cast(dict[str, Any], {"policy": ranks})

    def replicate(step: int) -> None:
        peers.replicate(DriverState(RunState(step=step, seed=0, prompts={})), learners)
        peers.wait()

    with cluster_of({"num_cpus": 1}, {"num_cpus": 1}):
        named = replica_ring.namespace_of(config)
        stores = replica_ring.build(named, ray.nodes(), memory=1, goes_on=False).values()
        before = replace(sheet_of(segment, 2), rank=0, ranks={"policy": 1})
        for store in stores:
            replica_ring.answer(store.attach.remote(before, segment.address))
        peers = Replicator(config)
        held = peers.newest()
        assert held is not None
        slow = workers_of("ReplicaStore")[0]
        slow.suspend()
        peers.adopt(held)
        replicate(3)
        assert ranks.told == []
        slow.resume()
        replica_ring.answers(store.held.remote() for store in stores)
        replicate(4)
        assert ranks.told == [4]
        peers.end()
