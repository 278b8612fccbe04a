"""A head that wakes up after another has taken over its run: it writes nothing and ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from contract.journal import timestamp
from tests.container.faults import checker
from tests.container.faults.reward import RewardServer
from tests.container.faults.stage import BOOT_SECONDS, Stage, make_data
from tests.support.node_cluster import HEAD, Cluster, signalled
from tests.support.watch import Watch

pytestmark = [pytest.mark.timeout(400)]

RIVAL = 1


class Rivals(Cluster):
    """Two clusters of one node each, on ports of their own, with one run directory."""

    def environment(self, number: int) -> dict[str, str]:
        env = super().environment(number)
        if number == HEAD:
            return env
        first = self.layout.ports + 5
        return env | {
            "RAY_WORKER": "0",
            "ROLLCALL_NODE_NAME": "rival",
            "ROLLCALL_HEAD_ADDRESS": env["ROLLCALL_NODE_ADDRESS"],
            "ROLLCALL_RAY_PORT": str(first),
            "ROLLCALL_DASHBOARD_PORT": str(first + 1),
            "ROLLCALL_CONTROL_PORT": str(first + 2),
        }

    def journal_of(self, epoch: int) -> list[checker.Event]:
        return [e for e in checker.all_events(self.run.journal) if e["epoch"] == epoch]

    def succeed(self) -> None:
        """The rival takes over from the head, which does not see it, and makes steps."""
        self.start(RIVAL)
        self.until(lambda: len(self.events("start")) == 2, "second head", within=60)
        step_of_it = "step of the second head"
        self.until(lambda: "step" in self.kinds_of(2), step_of_it, within=BOOT_SECONDS)

    def kinds_of(self, epoch: int) -> set[str]:
        return {event["kind"] for event in self.journal_of(epoch)}

    def assert_only_the_rival_writes(self) -> None:
        """For as long as some steps take; then it stops."""
        before = len(self.journal_of(1))
        steps = len(self.events("step"))
        Watch.until(self, lambda: len(self.events("step")) > steps + 2, "steps", within=60)
        assert len(self.journal_of(1)) == before
        events = checker.all_events(self.run.journal)
        assert list(checker.heads(events)) == []
        for rule in (checker.steps, checker.endings):
            assert list(rule(checker.in_force(events))) == []
        self.terminate(RIVAL)
        assert self.nodes[RIVAL].wait(40) == 143


class TrainingRivals(Rivals, Stage):
    """The trainer itself is at work."""


@pytest.fixture
def rivals(tmp_path: Path) -> Iterator[Rivals]:
    cluster = Rivals(tmp_path, workers=0)
    try:
        cluster.start(HEAD)
        cluster.goes_on(within=BOOT_SECONDS)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[TrainingRivals]:
    with RewardServer() as reward:
        cluster = TrainingRivals(tmp_path, make_data(tmp_path / "data"), reward, workers=0)
        try:
            cluster.start(HEAD)
            cluster.goes_on(within=BOOT_SECONDS)
            cluster.event("checkpoint", within=60)
            yield cluster
        finally:
            cluster.close()


@pytest.mark.faults
def test_a_head_whose_machine_was_frozen_is_succeeded_and_writes_nothing_when_it_wakes_up(
    rivals: Rivals,
) -> None:
    machine = [psutil.Process(rivals.nodes[HEAD].pid), *rivals.processes(HEAD)]
    signalled(machine, signal.SIGSTOP)
    frozen = timestamp()
    rivals.succeed()
    journal = rivals.run.journal.read_bytes()
    signalled(machine, signal.SIGCONT)
    assert rivals.nodes[HEAD].wait(30) == 73
    assert "was taken over by a later head (lease 2" in rivals.said(HEAD)
    assert rivals.run.journal.read_bytes().startswith(journal)
    # What froze between its look at the leases and its write has been written now.
    assert all(event["at"] <= frozen for event in rivals.journal_of(1))
    assert rivals.processes(HEAD) == []
    rivals.assert_only_the_rival_writes()


@pytest.mark.faults
def test_a_trainer_whose_head_was_succeeded_ends_by_itself(training: TrainingRivals) -> None:
    head, (driver,) = psutil.Process(training.nodes[HEAD].pid), training.of("driver")
    head.suspend()
    training.succeed()
    assert not driver.is_running(), "its head is frozen: it has found the later lease itself"
    head.resume()
    assert training.nodes[HEAD].wait(30) == 73
    training.assert_only_the_rival_writes()
    assert training.faults() == []
