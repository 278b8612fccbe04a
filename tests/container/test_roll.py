"""How a cluster of containers comes together, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.container.cluster import ENDLESS, JOB, REWARD_URL, SHORT, Cluster
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.container, pytest.mark.timeout(450)]

OTHER_RAY = "localhost/rollcall:other-ray"
EARLY_SECONDS, LATE_SECONDS = 60, 30
MISSING = "1 worker never checked in"
TOKEN = "given-to-every-node"
"""With a given token workers wait for the head's name, not for a file in the run directory."""


@pytest.fixture(scope="module", autouse=True)
def early(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[tuple[Cluster, float]]:
    """A worker without a head, and since when: it waits while the tests before its own run."""
    with Cluster(tmp_path_factory.mktemp("staggered") / "cluster", data) as cluster:
        cluster.worker(1, ROLLCALL_TOKEN=TOKEN)
        yield cluster, time.monotonic()


def test_head_two_workers_and_a_reward_server_finish_a_run_and_exit_0_within_120_seconds(
    tmp_path: Path, data: Path
) -> None:
    began = time.monotonic()
    with Cluster(tmp_path / "cluster", data) as cluster:
        cluster.reward_server()
        cluster.head(*SHORT, ROLLCALL_REWARD_URL=REWARD_URL)
        cluster.worker(1)
        cluster.worker(2)
        assert cluster.exit_codes(within=120) == {"head": 0, "worker-1": 0, "worker-2": 0}
        assert time.monotonic() - began < 120
        result = json.loads(cluster.run.result.read_text())
        assert (result["outcome"], result["attempts"], result["steps"]) == ("finished", 1, 10)
        logs = {path.name for path in cluster.run.logs.iterdir()}
        assert {"head.log", "worker-1.log", "worker-2.log", "attempt-1.log"} <= logs


@pytest.mark.faults
def test_a_killed_driver_resumes_and_the_run_ends(tmp_path: Path, data: Path) -> None:
    with Cluster(tmp_path / "cluster", data) as cluster:
        job = (*JOB, "--max_steps", "150", "--save_steps", "5", "--remote_rm_url", "arithmetic")
        head = cluster.head(*job, workers=1)
        cluster.worker(1)
        cluster.watch.event("checkpoint", within=120)
        (driver,) = head.pids("-P -m trainer")
        os.kill(driver, signal.SIGKILL)
        cluster.watch.resumes(1, within=90)
        assert cluster.exit_codes(within=120) == {"head": 0, "worker-1": 0}
        result = json.loads(cluster.run.result.read_text())
        assert (result["outcome"], result["attempts"], result["steps"]) == ("finished", 2, 150)
    assert_no_step_is_lost_or_done_twice(cluster.run)


def test_a_worker_with_another_ray_is_refused_on_both_sides_within_60_seconds(
    tmp_path: Path, data: Path
) -> None:
    with Cluster(tmp_path / "cluster", data) as cluster:
        head = cluster.head(*ENDLESS, "--remote_rm_url", "arithmetic", workers=1)
        worker = cluster.worker(1, image=OTHER_RAY)
        assert worker.exit_code(within=60) == 76
        reason = "ray 2.55.1 here, 2.55.0 on the head"
        assert reason in worker.said
        refused = cluster.watch.event("refused", within=5)
        assert reason in refused["sentence"]
        assert head.running
        head.stop(grace=30)
        assert head.exit_code(within=10) == 143


@pytest.fixture(scope="module")
def staggered(early: tuple[Cluster, float]) -> Cluster:
    """The least convenient order: a worker, 60 s later the head, 20 s later the other worker, and
    a reward server that answers 30 s after the roll is complete."""
    cluster, began = early
    time.sleep(max(0.0, EARLY_SECONDS - (time.monotonic() - began)))
    head = cluster.head(*SHORT, ROLLCALL_REWARD_URL=REWARD_URL, ROLLCALL_TOKEN=TOKEN)
    cluster.watch.event("start", within=60)  # from which the late worker's seconds are counted
    time.sleep(20)
    cluster.watch.until(lambda: MISSING in head.said, "the roll call", within=90)
    cluster.worker(2, ROLLCALL_TOKEN=TOKEN)
    cluster.watch.event("roll", within=120)
    cluster.reward_server(after=LATE_SECONDS)
    return cluster


@pytest.mark.faults
def test_a_worker_started_60_seconds_before_the_head_is_on_the_roll_within_60_seconds_of_it(
    staggered: Cluster,
) -> None:
    joined = check_in(staggered, "worker-1 at", "joined Ray")
    assert seconds(staggered.watch.events("start")[0], joined) < 60
    said = staggered.nodes["worker-1"].said.splitlines()
    waits = [line for line in said if "waiting for the head's name" in line]
    assert 2 <= len(waits) < 20, "it says that it waits, and does not flood the log"


def test_a_head_started_first_names_the_late_worker_and_takes_it_in_within_60_seconds(
    staggered: Cluster,
) -> None:
    arrived, joined = (check_in(staggered, "worker-2 at", how) for how in ("checked", "joined"))
    assert seconds(staggered.watch.events("start")[0], arrived) > 20
    assert seconds(arrived, joined) < 60
    assert MISSING in staggered.nodes["head"].said


@pytest.mark.faults
def test_the_job_starts_within_20_seconds_of_a_reward_server_that_answers_after_30(
    staggered: Cluster,
) -> None:
    attempt = staggered.watch.event("attempt", within=LATE_SECONDS + 30)
    assert seconds(staggered.watch.events("roll")[0], attempt) > LATE_SECONDS
    answers_from = int(staggered.nodes["reward"].said.split()[0])
    assert datetime.fromisoformat(attempt["at"]).timestamp() - answers_from < 20
    assert "waiting for the reward server" in staggered.nodes["head"].said
    assert staggered.exit_codes(within=90) == {"head": 0, "worker-1": 0, "worker-2": 0}
    assert len(staggered.watch.events("attempt")) == 1


def check_in(cluster: Cluster, *words: str) -> dict[str, Any]:
    """The first check-in whose sentence has all `words`."""

    def found() -> list[dict[str, Any]]:
        events = cluster.watch.events("check-in")
        return [event for event in events if all(word in event["sentence"] for word in words)]

    cluster.watch.until(lambda: bool(found()), f"check-in: {' '.join(words)}", within=60)
    return found()[0]


def seconds(earlier: dict[str, Any], later: dict[str, Any]) -> float:
    times = (datetime.fromisoformat(event["at"]) for event in (earlier, later))
    first, second = times
    return (second - first).total_seconds()
