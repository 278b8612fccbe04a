"""One fault after the other in a cluster that trains; each is survived within its deadline."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.container.cluster import ENDLESS, Cluster
from tests.watch import assert_no_step_is_lost_or_done_twice
from trainer.contract import newest_checkpoint

pytestmark = [pytest.mark.container, pytest.mark.timeout(300)]

BOOT_SECONDS = 120


class Standing:
    """A cluster that trains: the one that outlived the fault before, else a new one."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root, self.data = root, data
        self._stack = ExitStack()
        self._cluster: Cluster | None = None
        self._count = 0

    def cluster(self) -> Cluster:
        if self._cluster is None or not self._trains(self._cluster):
            self.close()
            self._count += 1
            new = Cluster(self.root / str(self._count), self.data)
            self._cluster = self._stack.enter_context(new)
            new.head(*ENDLESS, "--remote_rm_url", "arithmetic")
            new.worker(1)
            new.worker(2)
            new.watch.goes_on(within=BOOT_SECONDS)
        return self._cluster

    def close(self) -> None:
        self._stack.close()
        self._cluster = None

    def _trains(self, cluster: Cluster) -> bool:
        try:
            cluster.watch.goes_on(within=10)
        except AssertionError:
            return False
        return True


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Standing]:
    standing = Standing(tmp_path_factory.mktemp("faults"), data)
    yield standing
    standing.close()


@pytest.fixture
def cluster(standing: Standing) -> Iterator[Cluster]:
    """Training, and with a checkpoint that this test's fault must not lose."""
    cluster = standing.cluster()
    cluster.watch.event("checkpoint", within=60, after=len(cluster.watch.events("checkpoint")))
    yield cluster
    assert_no_step_is_lost_or_done_twice(cluster.run)


def so_far(cluster: Cluster) -> tuple[int, int]:
    """Attempts, and the step of the newest checkpoint."""
    checkpoint = cluster.watch.events("checkpoint")[-1]
    return len(cluster.watch.events("attempt")), checkpoint["details"]["step"]


def resumes(cluster: Cluster, attempts: int, saved: int, *, within: float) -> None:
    """A step is done by an attempt after the first `attempts`, from step `saved` or a later one."""
    cluster.watch.resumes(attempts, within=within)
    assert cluster.watch.events("resume")[-1]["details"]["step"] >= saved


def test_after_the_driver_is_killed_the_next_step_is_done_within_45_seconds(
    cluster: Cluster,
) -> None:
    attempts, saved = so_far(cluster)
    for pid in cluster.nodes["head"].pids("python -m trainer"):
        os.kill(pid, signal.SIGKILL)
    resumes(cluster, attempts, saved, within=45)
    assert len(cluster.watch.events("attempt")) == attempts + 1


def test_after_a_worker_is_killed_and_started_again_the_next_step_is_done_within_90_seconds(
    cluster: Cluster,
) -> None:
    attempts, saved = so_far(cluster)
    cluster.nodes["worker-1"].kill()
    cluster.nodes["worker-1"].start_again()
    resumes(cluster, attempts, saved, within=90)


def test_after_the_head_is_killed_and_started_again_the_next_step_is_done_within_90_seconds(
    cluster: Cluster,
) -> None:
    attempts, saved = so_far(cluster)
    cluster.nodes["head"].kill()
    cluster.nodes["head"].start_again()
    resumes(cluster, attempts, saved, within=90)
    assert cluster.nodes["worker-1"].running
    assert cluster.nodes["worker-2"].running


def test_podman_stop_of_the_head_ends_all_with_143_and_a_whole_checkpoint_within_30_seconds(
    cluster: Cluster,
) -> None:
    cluster.nodes["head"].stop(grace=30)
    assert cluster.exit_codes(within=10) == {"head": 143, "worker-1": 143, "worker-2": 143}
    assert newest_checkpoint(cluster.run.checkpoints) == cluster.watch.step
