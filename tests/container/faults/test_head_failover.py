"""The head is lost for ever in the middle of a training: a worker leads it on, by itself."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.container.cluster import ENDLESS
from tests.container.faults import checker, results
from tests.container.faults.alone import train_alone
from tests.container.faults.fault import Fault, undergo
from tests.container.faults.machine import do
from tests.container.faults.reward import RewardServer
from tests.container.faults.stage import BOOT_SECONDS, Stage, make_data, numbers
from tests.container.faults.table_containers import (
    FIRST,
    SECOND,
    Containers,
    asked,
    killed,
    lets_through,
    started,
)
from tests.container.faults.table_containers import HEAD as FIRST_HEAD
from tests.support.node_cluster import HEAD, JOB
from tests.support.podman import missing, podman
from tests.support.watch import Watch, assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

TAKEN_SECONDS = 200
AWAY_SECONDS = 40
"""Several times as long as a worker watches a heartbeat."""


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


HALVES = ((FIRST_HEAD, FIRST), (SECOND, "worker-3"))


class Idle(Containers):
    """Its job trains nothing, and goes on with one worker."""

    workers = 2

    def boot(self) -> None:
        own = {"ROLLCALL_MIN_WORKERS": "1", "ROLLCALL_REPLACE_TIMEOUT": "5s"}
        own |= {"ROLLCALL_RECIPE": "command", "ROLLCALL_HEAD_FAILOVER": "auto"}
        self.head("python", f"/data/{JOB.name}", workers=self.workers, **own)
        for number in range(1, 1 + self.workers):
            self.worker(number)
        self.watch.event("checkpoint", within=3 * BOOT_SECONDS)

    def lead(self) -> set[int]:
        """The leases by which steps were written."""
        return {event["epoch"] for event in self.events("step")}

    def without_storage(self, node: str, *command: str) -> None:
        """A command that puts an empty file system over the run directory, or takes it away."""
        pid = podman("inspect", "--format={{.State.Pid}}", self.nodes[node].id).stdout.strip()
        do("nsenter", f"--mount=/proc/{pid}/ns/mnt", *command)

    def is_at_work_with(self, workers: int) -> bool:
        roll, steps = self.events("roll")[-1], self.events("step")
        return (
            len(roll["details"]["present"]) == workers
            and self.events("attempt")[-1]["at"] > roll["at"]
            and steps[-1]["at"] > self.events("attempt")[-1]["at"]
        )


class Halves(Idle):
    """Four nodes; one half has the head."""

    workers = 3

    def cut(self) -> None:
        """No packet of one half comes to the other."""
        for node in HALVES[0]:
            for other in HALVES[1]:
                for chain, side in (("INPUT", "-s"), ("OUTPUT", "-d")):
                    rule = ("-A", chain, side, self.address(other), "-j", "DROP")
                    self.inside(node, "iptables", *rule)

    def join(self) -> None:
        for node in HALVES[0]:
            lets_through(node)(self)

    def address(self, node: str) -> str:
        each = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return podman("inspect", f"--format={each}", self.nodes[node].id).stdout.strip()


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


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Idle]:
    if reason := missing():
        pytest.skip(reason)
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(JOB, data)
    with Idle(tmp_path / "cluster", data) as cluster:
        cluster.boot()
        yield cluster


@pytest.mark.timeout(900)
def test_a_frozen_head_is_replaced_writes_nothing_when_it_wakes_up_and_joins(idle: Idle) -> None:
    asked("pause", FIRST_HEAD)(idle)
    idle.until(lambda: idle.lead() == {1, 2}, "step of a new head", within=TAKEN_SECONDS)
    (move,) = idle.events("head-moved")
    now = str(move["details"]["now"])
    lines = len(idle.run.journal.read_text().splitlines())
    asked("unpause", FIRST_HEAD)(idle)
    idle.until(lambda: idle.is_at_work_with(2), "roll of all", within=TAKEN_SECONDS)
    since = idle.run.journal.read_text().splitlines()[lines:]
    assert {json.loads(line)["epoch"] for line in since} == {2}
    assert "this node joins it" in idle.nodes[FIRST_HEAD].said
    told = idle.nodes[FIRST_HEAD].execute("rollcall", "status", "--address", "localhost:8267")
    assert f"head {now}: training" in told.stdout, "its address leads to the new head"
    assert_no_step_is_lost_or_done_twice(idle.run)
    idle.nodes[now].stop(grace=60)
    assert set(idle.exit_codes(within=60).values()) == {143}
    assert list(checker.heads(checker.all_events(idle.run.journal))) == []


@pytest.mark.timeout(900)
def test_a_head_without_storage_that_answers_keeps_its_place_and_goes_on_once_it_is_back(
    idle: Idle,
) -> None:
    steps = len(idle.events("step"))
    idle.without_storage(FIRST_HEAD, "mount", "-t", "tmpfs", "none", "/checkpoints")
    time.sleep(AWAY_SECONDS)
    assert idle.events("head-moved") == [], "it answers: nobody takes its place"
    idle.without_storage(FIRST_HEAD, "umount", "/checkpoints")
    idle.until(lambda: len(idle.events("step")) > steps + 50, "steps", within=TAKEN_SECONDS)
    assert idle.lead() == {1}
    assert_no_step_is_lost_or_done_twice(idle.run)
    idle.nodes[FIRST_HEAD].stop(grace=60)
    assert set(idle.exit_codes(within=60).values()) == {143}


@pytest.mark.timeout(1200)
def test_of_two_halves_the_one_with_the_storage_goes_on_and_with_both_the_one_with_the_head(
    tmp_path: Path,
) -> None:
    if reason := missing():
        pytest.skip(reason)
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(JOB, data)
    with Halves(tmp_path / "cluster", data) as cluster:
        cluster.boot()
        attempts = len(cluster.events("attempt"))
        cluster.cut()
        cluster.watch.resumes(attempts, within=TAKEN_SECONDS)
        assert cluster.lead() == {1}, (
            "the others see the heartbeat of the head that they cannot ask"
        )
        cluster.join()
        cluster.until(lambda: cluster.is_at_work_with(3), "roll of all", within=TAKEN_SECONDS)
        assert cluster.events("head-moved") == []

        began = time.monotonic()
        for node in HALVES[0]:
            cluster.without_storage(node, "mount", "-t", "tmpfs", "none", "/checkpoints")
        cluster.cut()
        cluster.until(lambda: cluster.lead() == {1, 2}, "step of a new head", within=TAKEN_SECONDS)
        print(f"{time.monotonic() - began:.1f} s from the loss of half to the next step")
        (move,) = cluster.events("head-moved")
        assert move["node"] in HALVES[1]
        last = len(cluster.events("step"))
        for node in HALVES[0]:
            cluster.without_storage(node, "umount", "/checkpoints")
        cluster.join()
        cluster.until(lambda: cluster.is_at_work_with(3), "roll of all", within=TAKEN_SECONDS)
        assert {event["epoch"] for event in cluster.events("step")[last:]} == {2}
        assert_no_step_is_lost_or_done_twice(cluster.run)
        cluster.nodes[move["node"]].stop(grace=60)
        assert set(cluster.exit_codes(within=60).values()) == {143}
