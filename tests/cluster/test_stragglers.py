"""A rank that gets less of its CPU than the others is named, or its node leaves, in real runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.launch.places import MOVED
from entrypoint.run.flight_record.time_accounting import SLOW_LEFT
from tests.support.node_cluster import HEAD, Cluster
from tests.support.ray_workers import actor_of
from tests.support.tiny_job import tiny_job
from tests.support.watch import assert_no_step_is_lost_or_done_twice

RANKS = ("policy-0", "policy-1", "policy-2")
RUNS_SECONDS, STOPS_SECONDS = 0.003, 0.01
"""Shorter than an update of the tiny model, so that each one takes longer."""
LARGER = {"--train_batch_size": "24", "--rollout_batch_size": "24", "--generate_max_len": "12"}
"""So that an update is more than one moment of a CPU."""


def cluster_of(tmp_path: Path, **env: str) -> Cluster:
    """Three nodes at work, a rank of the policy on each."""
    job = [*tiny_job(tmp_path, 100_000), "--save_steps", "100000", "--actor_num_nodes", "3"]
    for name, value in LARGER.items():
        job[job.index(name) + 1] = value
    return Cluster(tmp_path / "run", workers=2, job=job, ROLLCALL_RECIPE="builtin", **env)


@pytest.mark.faults
@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_rank_that_is_stopped_again_and_again_is_named_with_its_node(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path)
    try:
        cluster.start(HEAD, 1, 2)
        cluster.event("step", within=400)
        ranks = {actor_of(p): (n, p.pid) for n in range(3) for p in cluster.processes(n)}
        node, process = ranks["policy-1"]
        name = cluster.environment(node)["ROLLCALL_NODE_NAME"]
        with held_back(process):
            event = cluster.event("straggler", within=400)
            said = cluster.ask("status").stdout
        assert (event["details"]["role"], event["details"]["rank"]) == ("policy", 1)
        assert event["details"]["node"] == name
        assert event["sentence"].startswith(f"policy-1 on {name} computes ")
        assert f"slow: policy-1 on {name} computes " in said
    finally:
        cluster.close()


@pytest.mark.faults  # other tests beside it hide who is slow
@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_the_node_of_a_slow_rank_leaves_for_a_spare_between_two_steps(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, ROLLCALL_SPARE_WORKERS="1", ROLLCALL_STRAGGLERS="replace")
    try:
        cluster.start(HEAD, 1, 2, 3)
        workers = cluster.event("roll", within=300)["details"]["present"]
        cluster.event("step", within=400)
        cluster.until(
            lambda: "2 of 2 workers, 1 spare" in cluster.ask("status").stdout, "spare", within=120
        )
        spare = ({"worker-1", "worker-2", "worker-3"} - set(workers)).pop()
        slow = int(workers[0][-1])
        (process,) = [p.pid for p in cluster.processes(slow) if actor_of(p).startswith("policy")]
        with held_back(process):
            left = cluster.event(SLOW_LEFT, within=400)
        cluster.resumes(1, within=300)
        assert left["details"]["node"] == workers[0]
        (moved,) = cluster.events(MOVED)
        assert (moved["details"]["lost"], moved["details"]["node"]) == (workers[0], spare)
        assert not cluster.events("failure")
        cluster.until(lambda: not cluster.nodes[slow].running, "end of the slow node", within=60)
        assert cluster.nodes[slow].exit_code == ExitCode.UNFIT
        cluster.start(slow)
        cluster.until(lambda: not cluster.nodes[slow].running, "refusal", within=120)
        assert "it may be back in" in cluster.said(slow)
        assert cluster.ask("stop").returncode == 0
        cluster.exit_codes(within=90)
        assert_no_step_is_lost_or_done_twice(cluster.run)
    finally:
        cluster.close()


@contextmanager
def held_back(process: int) -> Iterator[None]:
    """Stop a process again and again, for most of the time."""
    over = threading.Event()

    def hold() -> None:
        with suppress(ProcessLookupError):
            while not over.wait(RUNS_SECONDS):
                os.kill(process, signal.SIGSTOP)
                time.sleep(STOPS_SECONDS)
                os.kill(process, signal.SIGCONT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
