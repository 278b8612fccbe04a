"""One real node whose job is a command that knows nothing of Rollcall."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.command_job import PAUSE_SECONDS
from tests.support.head_page import page
from tests.support.node_cluster import HEAD, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

JOB = Path(__file__).with_name("command_job.py")
HANG_SECONDS = 6.0
STEPS = 25
NEWEST_SECONDS = 2.0
"""What was printed so long ago is in the copy."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(
        tmp_path_factory.mktemp("command"),
        workers=0,
        job=(sys.executable, str(JOB)),
        ROLLCALL_HANG_TIMEOUT=f"{HANG_SECONDS}s",
        ROLLCALL_MAX_RESTARTS="0",
    )
    try:
        cluster.start(HEAD)
        cluster.event("attempt", within=120)
        yield cluster
    finally:
        cluster.close()


def printed(log: Path) -> list[float]:
    """The times that the job has printed; Ray writes to the same file."""
    text = log.read_text() if log.exists() else ""
    return [float(line) for line in re.findall(r"^\d+\.\d{3}$", text, re.MULTILINE)]


def copy(cluster: Cluster, attempt: int) -> Path:
    return cluster.run.logs / f"attempt-{attempt}.log"


def test_the_log_is_copied_while_the_job_runs_and_a_job_that_prints_is_not_hung(
    cluster: Cluster,
) -> None:
    def lasts() -> float:
        times = printed(copy(cluster, 1))
        return times[-1] - times[0] if times else 0.0

    cluster.until(lambda: lasts() > 1.5 * HANG_SECONDS, "line after line", within=60)
    assert time.time() - printed(copy(cluster, 1))[-1] < NEWEST_SECONDS
    assert cluster.events("failure") == []


def test_the_log_of_a_killed_head_is_whole_up_to_its_last_second(cluster: Cluster) -> None:
    killed_at = time.time()
    cluster.kill(HEAD)
    (own,) = cluster.ray_dir(HEAD).glob("session_2*/logs/job-driver-*.log")
    times = printed(copy(cluster, 1))
    assert times[-1] > killed_at - NEWEST_SECONDS
    assert printed(own)[: len(times)] == times


def test_a_closed_terminal_stops_the_node_as_sigterm_does_and_leaves_no_process(
    cluster: Cluster,
) -> None:
    cluster.start(HEAD)
    cluster.until(lambda: cluster.step >= STEPS, f"step {STEPS}", within=120)
    with page(cluster) as events:
        psutil.Process(cluster.nodes[HEAD].pid).send_signal(signal.SIGHUP)
        assert cluster.exit_codes(within=30) == {HEAD: 143}
        assert '"kind": "outcome"' in events.read().decode()
    assert cluster.left() == []
    assert "Traceback" not in cluster.said(HEAD)


def test_the_report_of_a_command_has_the_steps_that_it_told(cluster: Cluster) -> None:
    record = json.loads(cluster.ask("report", str(cluster.run.root), "--json").stdout)
    assert record["steps"] >= STEPS
    assert [one["steps"] for one in record["attempts"]] == [0, record["steps"]]
    assert record["seconds"]["training"] > 0.5 * STEPS * PAUSE_SECONDS
    assert record["effective_time_ratio"] > 0


def test_status_stop_and_logs_tell_the_outcome_of_a_run_that_has_ended(cluster: Cluster) -> None:
    for words in (["status"], ["stop"], ["logs"]):
        asked = cluster.ask(*words)
        assert asked.returncode == 0, asked.stderr
        assert "the run has ended (stopped, exit code 143)" in asked.stdout
