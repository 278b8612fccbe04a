"""Engines on real nodes are stopped, killed, and lose their node; their pool goes on and mends.

What they write is their node and process: whose work it was is what counts here.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tests.support.ray_nodes import cluster_at
from trainer.cluster import placement
from trainer.cluster.ray_worker_group import RayLauncher
from trainer.cluster.restarts import Patience
from trainer.cluster.worker_group import WorkerGroup
from trainer.config import layout
from trainer.config.layout import Layout, ResourcePool
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine_pool import EnginePool
from trainer.types import LostWorkerError, Request

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

SAMPLING = SamplingSettings(max_new_tokens=1)


class Scribe:
    """An engine that writes where it is."""

    def generate(self, requests: Sequence[Request], sampling: SamplingSettings) -> list[Any]:
        time.sleep(0.3)
        return [self.where()] * sum(len(request.seeds) for request in requests)

    def where(self) -> tuple[str, int]:
        context: Any = ray.get_runtime_context()
        return context.get_node_id(), os.getpid()


@dataclass
class Run:
    cluster: Cluster
    group: WorkerGroup[Any]
    pool: EnginePool
    told: list[tuple[str, dict[str, Any]]]

    def write(self) -> list[tuple[str, int]]:
        """Node and process that wrote each of two shares."""
        shares: list[list[Any]] = self.pool.generate(SHARES, SAMPLING)
        return [share[0] for share in shares]

    def write_without(self, node: str) -> None:
        """Until nothing is written on that node: processes outlive their Ray for a moment."""
        deadline = time.monotonic() + 30
        while any(place == node for place, _ in self.write()):
            assert time.monotonic() < deadline

    def mend(self, events: int, longest: float = math.inf) -> list[tuple[str, dict[str, Any]]]:
        """What was told, once so much was: weights come again and again, as in a run.

        `longest`: seconds that a step may wait for it.
        """
        deadline = time.monotonic() + 120
        while len(self.told) < events:
            assert time.monotonic() < deadline, self.told
            begun = time.monotonic()
            self.pool.welcome(1)
            assert time.monotonic() - begun < longest
            self.pool.committed()
            time.sleep(0.2)
        told, self.told[:] = list(self.told), []
        return told


SHARES = [[Request("a", (1, 2))], [Request("b", (3, 4, 5))]]


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Two engines and a policy, on three nodes of two CPUs each where nothing else is asked for."""
    names: str = getattr(request, "param", "abc")
    roles = {layout.Role.POLICY: 1, layout.Role.ENGINE: 2}
    groups = [
        layout.RoleProcesses(role=role, nodes=count, per_node=1) for role, count in roles.items()
    ]
    wanted = Layout(tuple(ResourcePool(groups=(group,)) for group in groups))
    with cluster_at(*[{"num_cpus": 2, "node_name": name} for name in names]) as cluster:
        launcher = RayLauncher(placement.reserve(wanted), timeout=120.0)
        group = launcher.launch("engine", f"{__name__}:Scribe", 2)
        told: list[tuple[str, dict[str, Any]]] = []
        pool = EnginePool(
            group,
            tell=lambda kind, sentence, **details: told.append((kind, details)),
            patience=Patience(start=120, part=3, life=3),
        )
        pool.welcome(1)
        pool.committed()
        yield Run(cluster, group, pool, told)


def test_a_killed_engine_is_replaced_where_it_was(run: Run) -> None:
    (_, living), (node, killed) = run.write()
    os.kill(killed, signal.SIGKILL)
    assert [process for _, process in run.write()] == [living, living]
    ((kind, details),) = run.mend(1)
    assert (kind, details["engine"], details["samples"]) == ("engine-replaced", 1, 3)
    assert run.write()[1][0] == node
    assert run.pool.present == [0, 1]


def test_a_stopped_engine_is_killed_and_replaced(run: Run) -> None:
    (_, stopped), (_, living) = run.write()
    os.kill(stopped, signal.SIGSTOP)
    begun = time.monotonic()
    assert [process for _, process in run.write()] == [living, living]
    assert time.monotonic() - begun < 15
    ((kind, details),) = run.mend(1)
    assert (kind, details["engine"], details["samples"]) == ("engine-replaced", 0, 2)
    assert not psutil.pid_exists(stopped)
    assert run.write()[0][1] != stopped


def test_a_killed_process_of_a_group_is_named_and_started_anew(run: Run) -> None:
    _, (_, killed) = run.write()
    asked = run.group.send(1, Scribe.generate, SHARES[0], SAMPLING)
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(LostWorkerError, match=r"^engine-1 is lost: .*(died|unavailable)") as caught:
        asked.result()
    assert caught.value.role == "engine"
    # The second is what Ray says where it has not heard of the death within a second.
    assert caught.value.how in ("its process ended", "it cannot be reached")
    run.group.restart([1])
    assert run.group.wait_started(120)
    assert run.group.send(1, Scribe.where).result()[1] != killed


def test_an_engine_whose_node_is_lost_is_replaced_on_another_long_before_the_cluster_knows(
    run: Run,
) -> None:
    places = run.write()
    head = run.cluster.head_node.node_id
    (engine, node), *_ = [(n, node) for n, (node, _) in enumerate(places) if node != head]
    (lost,) = [one for one in run.cluster.worker_nodes if one.node_id == node]
    run.cluster.remove_node(lost, allow_graceful=False)
    begun = time.monotonic()
    run.write_without(node)
    assert time.monotonic() - begun < 15, "its loss is known, and another place found"
    told = run.mend(1)
    assert told[0][0] == "engine-replaced"
    assert all(place != node for place, _ in run.write())
    assert engine in run.pool.present


def test_an_engine_on_a_living_node_is_replaced_there_also_after_a_node_was_lost(run: Run) -> None:
    for engine, (node, killed) in enumerate(run.write()):
        os.kill(killed, signal.SIGKILL)
        run.write()
        assert run.mend(1)[0][1]["engine"] == engine
        assert run.write()[engine][0] == node


@pytest.mark.faults
@pytest.mark.parametrize("run", ["ab"], indirect=True)
def test_where_no_slot_is_free_the_run_goes_on_with_the_engines_that_are_left(run: Run) -> None:
    head = run.cluster.head_node.node_id
    ((engine, node),) = [(n, node) for n, (node, _) in enumerate(run.write()) if node != head]
    there = NodeAffinitySchedulingStrategy(head, soft=False)
    takers = [ray.remote(Scribe).options(num_cpus=1, scheduling_strategy=there) for _ in range(2)]
    ray.wait([taker.remote().where.remote() for taker in takers], num_returns=2, timeout=3)
    (lost,) = [one for one in run.cluster.worker_nodes if one.node_id == node]
    run.cluster.remove_node(lost, allow_graceful=False)
    run.write_without(node)
    ((kind, details),) = run.mend(1)
    assert (kind, details["engine"], details["engines"]) == ("engine-left-out", engine, 1)
    assert run.pool.shares == 1
    assert len(run.pool.generate(SHARES, SAMPLING)) == 2

    found = run.cluster.add_node(num_cpus=2, node_name="d")
    ((kind, details),) = run.mend(1, longest=3.0)
    assert (kind, details["engine"], details["engines"]) == ("engine-returned", engine, 2)
    assert run.pool.shares == 2
    assert {node for node, _ in run.write()} == {head, found.node_id}
