"""How a cluster of containers comes together, and how it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from contract.manifest import newest_checkpoint
from tests.container.cluster import JOB, REWARD_URL, SHORT, Cluster
from tests.support.podman import HARDENED, IMAGE, inspect
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.container, pytest.mark.timeout(600)]

OTHER_RAY = "localhost/rollcall:other-ray"
LATE_SECONDS = 10
JOIN_SECONDS = 120
"""On a busy machine, too."""
MISSING = "1 worker not checked in yet"
TOKEN = "given-to-every-node"
"""With a given token workers wait for the head's name, not for a file in the run directory."""


@pytest.fixture(scope="module")
def staggered(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Cluster]:
    """The least convenient order: a worker, the head, a worker with another Ray, the other worker,
    and a reward server that answers some time after the roll is complete.

    Each container has the image's user, a read-only root and no capability.
    """
    with Cluster(tmp_path_factory.mktemp("staggered") / "cluster", data) as cluster:
        cluster.run.root.chmod(0o750)
        cluster.options = (*HARDENED, "--volume=/tmp")
        first = cluster.worker(1, ROLLCALL_TOKEN=TOKEN)
        waits = "waiting for the head's name"
        cluster.watch.until(lambda: waits in first.said, "the first worker", within=60)
        head = cluster.head(*SHORT, ROLLCALL_REWARD_URL=REWARD_URL, ROLLCALL_TOKEN=TOKEN)
        cluster.watch.until(lambda: MISSING in head.said, "the roll call", within=300)
        cluster.worker(3, image=OTHER_RAY, ROLLCALL_TOKEN=TOKEN)
        cluster.watch.event("refused", within=120)
        cluster.worker(2, ROLLCALL_TOKEN=TOKEN)
        cluster.watch.event("roll", within=120)
        cluster.reward_server(after=LATE_SECONDS)
        yield cluster


def test_a_worker_started_before_the_head_is_on_the_roll(
    staggered: Cluster,
) -> None:
    joined = check_in(staggered, "worker-1 at", "joined Ray")
    assert seconds(staggered.watch.events("start")[0], joined) < JOIN_SECONDS


def test_a_worker_with_another_ray_is_refused_on_both_sides_and_the_head_waits_on(
    staggered: Cluster,
) -> None:
    other = staggered.nodes.pop("worker-3")
    assert other.exit_code(within=60) == 76
    reason = "ray 2.55.1 here, 2.55.0 on the head"
    assert reason in other.said
    (refused,) = staggered.watch.events("refused")
    assert reason in refused["sentence"]
    other.remove()


def test_a_head_names_the_late_worker_and_takes_it_in(
    staggered: Cluster,
) -> None:
    arrived, joined = (check_in(staggered, "worker-2 at", how) for how in ("checked", "joined"))
    assert seconds(arrived, joined) < JOIN_SECONDS
    assert MISSING in staggered.nodes["head"].said


def test_the_job_starts_once_a_late_reward_server_answers_and_all_exit_0(
    staggered: Cluster,
) -> None:
    attempt = staggered.watch.event("attempt", within=LATE_SECONDS + 60)
    assert seconds(staggered.watch.events("roll")[0], attempt) > LATE_SECONDS
    answers_from = int(staggered.nodes["reward"].said.split()[0])
    assert datetime.fromisoformat(attempt["at"]).timestamp() - answers_from < 60
    assert "waiting for the reward server" in staggered.nodes["head"].said
    assert staggered.exit_codes(within=240) == {"head": 0, "worker-1": 0, "worker-2": 0}
    result = json.loads(staggered.run.result.read_text())
    assert (result["outcome"], result["attempts"], result["steps"]) == ("finished", 1, 10)
    logs = {path.name for path in staggered.run.logs.iterdir()}
    assert {"head.log", "worker-1.log", "worker-2.log", "attempt-1.log"} <= logs


def test_the_images_user_trains_on_a_read_only_root_with_no_capability(staggered: Cluster) -> None:
    """Of the run above, which has ended with 0."""
    assert inspect(IMAGE)["Config"]["User"] == "1000:1000"
    assert newest_checkpoint(staggered.run.checkpoints) == 10
    assert {path.stat().st_uid for path in staggered.run.root.rglob("*")} == {1000}
    assert not any("host.private" in node.said for node in staggered.nodes.values())


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
