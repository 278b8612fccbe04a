"""The head is lost for ever in the middle of a training: a worker leads it on, by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.container.cluster import ENDLESS
from tests.container.faults import results
from tests.container.faults.alone import train_alone
from tests.container.faults.fault import Fault, undergo
from tests.container.faults.reward import RewardServer
from tests.container.faults.stage import BOOT_SECONDS, Stage, make_data, numbers
from tests.container.faults.table_containers import HEAD as FIRST_HEAD
from tests.container.faults.table_containers import Containers, killed, started
from tests.support.node_cluster import HEAD
from tests.support.podman import missing
from tests.support.watch import Watch, assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

TAKEN_SECONDS = 200


class Led(Stage):
    """Its head may be lost, and a wait outlives it."""

    def until(self, done: Callable[[], bool], what: str, *, within: float) -> None:
        Watch.until(self, done, what, within=within)

    def head_now(self) -> int:
        """The number of the node that leads since the head was lost."""
        move = self.event("head-moved", within=TAKEN_SECONDS)
        return int(move["details"]["now"].removeprefix("worker-"))


class LedContainers(Containers):
    def boot(self) -> None:
        job = (*ENDLESS, "--remote_rm_url", "arithmetic", "--dist_timeout", "45")
        self.head(*job, ROLLCALL_HEAD_FAILOVER="auto")
        self.worker(1)
        self.worker(2)
        self.watch.event("checkpoint", within=BOOT_SECONDS + 60)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Led]:
    with RewardServer() as reward:
        stage = Led(tmp_path, make_data(tmp_path / "data"), reward)
        stage.own[HEAD] = {"ROLLCALL_HEAD_FAILOVER": "auto"}
        try:
            stage.start(HEAD, 1, 2)
            stage.goes_on(within=BOOT_SECONDS)
            stage.event("checkpoint", within=60)
            yield stage
        finally:
            stage.close()


def test_the_weights_after_a_lost_head_are_an_undisturbed_runs_to_the_bit(
    stage: Led, tmp_path: Path
) -> None:
    lost: Fault[Stage] = Fault(
        name="head-lost",
        sentence="the head's machine is lost for ever, and a worker takes its place",
        inject=lambda stage: stage.kill(HEAD),
        deadline=TAKEN_SECONDS,
    )
    results.keep(lost.sentence, undergo(stage, lost))
    assert_no_step_is_lost_or_done_twice(stage.run)
    now = stage.head_now()
    other = 3 - now
    stage.terminate(now)
    Watch.until(stage, lambda: not stage.nodes[other].running, "end of the worker", within=60)
    assert stage.nodes[now].wait(60) == stage.nodes[other].exit_code == 143
    assert stage.left() == []
    assert stage.faults() == []
    step = stage.step
    assert stage.checkpoints()[0].name == f"global_step_{step}"
    undisturbed = train_alone(stage.data, tmp_path / "undisturbed", step)
    assert numbers(stage.run, step) == undisturbed


def test_a_heads_container_that_is_started_again_later_joins_the_new_head_as_a_worker(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if reason := missing():
        pytest.skip(reason)
    with LedContainers(tmp_path / "cluster", request.getfixturevalue("data")) as cluster:
        cluster.boot()
        lost: Fault[Containers] = Fault(
            name="container-head-lost",
            sentence="the head's container is killed for ever, and a worker takes its place",
            inject=killed(FIRST_HEAD),
            deadline=TAKEN_SECONDS,
        )
        results.keep(lost.sentence, undergo(cluster, lost))
        (move,) = cluster.events("head-moved")
        assert move["details"]["before"] == FIRST_HEAD
        attempts = len(cluster.events("attempt"))
        started(FIRST_HEAD)(cluster)
        cluster.watch.resumes(attempts, within=TAKEN_SECONDS)
        assert len(cluster.events("roll")[-1]["details"]["present"]) == 2
        assert "this node joins it" in cluster.nodes[FIRST_HEAD].said
        assert_no_step_is_lost_or_done_twice(cluster.run)
        cluster.nodes[move["details"]["now"]].stop(grace=60)
        assert set(cluster.exit_codes(within=60).values()) == {143}
        assert cluster.faults() == []
