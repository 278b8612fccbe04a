"""Ranks that die while others wait for them: at the start, and in a collective."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
import ray

from tests.support.import_order import ImportOrder
from tests.support.ray_nodes import short_directory, workers_of
from tests.support.repository import ROOT
from trainer.cluster import placement
from trainer.cluster.ray_worker_group import RayLauncher
from trainer.cluster.worker_group import WorkerGroup
from trainer.config import layout
from trainer.config.layout import Layout, ResourcePool
from trainer.types import LostWorkerError, Rank

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


class Member:
    """A rank of nothing but its process group."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def process(self) -> int:
        return os.getpid()

    def total(self) -> float:
        """Of all ranks' numbers, which begin at 1."""
        import torch
        from torch import distributed

        own = torch.tensor([self._rank.index + 1.0])
        distributed.all_reduce(own)
        return float(own)

    def die(self) -> None:
        if not self._rank.leads:
            os.kill(os.getpid(), signal.SIGKILL)
        self.total()


@pytest.fixture(scope="module")
def launcher() -> Iterator[RayLauncher]:
    group = layout.RoleProcesses(role=layout.Role.POLICY, nodes=1, per_node=2)
    wanted = Layout((ResourcePool(groups=(group,)),))
    with pytest.MonkeyPatch.context() as patch, short_directory() as root:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("RAY_TMPDIR", str(root))
        patch.setenv("PYTHONPATH", str(ROOT))  # each imports for itself: no fork has all already
        placement.join(wanted)
        yield RayLauncher(placement.reserve(wanted), timeout=180.0)
        ray.shutdown()


def test_a_rank_that_dies_before_or_in_a_collective_is_named_at_once_and_all_start_anew(
    launcher: RayLauncher,
) -> None:
    group: WorkerGroup[Member] = launcher.launch_ranks("policy", f"{__name__}:Member", 2)
    kill_last()
    begun = time.monotonic()
    with pytest.raises(LostWorkerError, match=r"^policy-1 is lost") as caught:
        group.wait_started(150)
    assert caught.value.role == "policy"
    assert time.monotonic() - begun < 90, "no wait for the time that ranks wait for one another"

    group.restart([1])
    assert group.wait_started(150)
    assert group.call_ranks(Member.total).result() == [3.0, 3.0]
    with pytest.raises(LostWorkerError, match=r"^policy-1 is lost"):
        group.call_ranks(Member.die).result()
    group.restart([1])
    assert group.wait_started(150)
    assert group.call_ranks(Member.total).result() == [3.0, 3.0]


def kill_last() -> None:
    """Its process says whose it is as soon as it is there, long before it has found the others."""
    deadline = time.monotonic() + 120
    while not (found := workers_of("policy-1")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found[0].kill()


@pytest.mark.faults
def test_ranks_import_their_class_before_they_wait_for_one_another(
    launcher: RayLauncher,
) -> None:
    group: WorkerGroup[ImportOrder] = launcher.launch_ranks(
        "policy", "tests.support.import_order:ImportOrder", 2
    )
    assert group.wait_started(150)
    before = group.call_ranks(ImportOrder.came_before, "trainer.cluster.rendezvous").result()
    assert before == [False, False]
    group.kill([0, 1])


@pytest.mark.faults
def test_a_name_that_an_earlier_runs_actor_still_has_is_no_fault(launcher: RayLauncher) -> None:
    earlier = ray.remote(Member).options(name="policy-0", num_cpus=0).remote(Rank())
    assert ray.get(earlier.process.remote())
    group: WorkerGroup[Member] = launcher.launch_ranks("policy", f"{__name__}:Member", 2)
    assert group.wait_started(150)
    assert group.call_ranks(Member.total).result() == [3.0, 3.0]
    group.kill([0, 1])
