"""A rank that gets less of its CPU than the others is named, in a real run of three nodes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.node_cluster import HEAD, Cluster
from tests.support.ray_workers import actor_of
from tests.support.tiny_job import tiny_job

RANKS = ("policy-0", "policy-1", "policy-2")
RUNS_SECONDS, STOPS_SECONDS = 0.003, 0.01
"""Shorter than an update of the tiny model, so that each one takes longer."""
MOST_STEPS = 300
LARGER = {"--train_batch_size": "24", "--rollout_batch_size": "24", "--generate_max_len": "12"}
"""So that an update is more than one moment of a CPU."""


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_rank_that_is_stopped_again_and_again_is_named_with_its_node(tmp_path: Path) -> None:
    job = [*tiny_job(tmp_path, 100_000), "--save_steps", "100000", "--actor_num_nodes", "3"]
    for name, value in LARGER.items():
        job[job.index(name) + 1] = value
    cluster = Cluster(tmp_path / "run", workers=2, job=job, ROLLCALL_RECIPE="builtin")
    try:
        cluster.start(HEAD, 1, 2)
        cluster.event("step", within=400)
        ranks = {actor_of(p): (n, p.pid) for n in range(3) for p in cluster.processes(n)}
        node, process = ranks["policy-1"]
        began = cluster.step
        name = cluster.environment(node)["ROLLCALL_NODE_NAME"]
        with held_back(process):
            event = cluster.event("straggler", within=400)
            said = cluster.ask("status").stdout
        assert (event["details"]["role"], event["details"]["rank"]) == ("policy", 1)
        assert event["details"]["node"] == name
        assert event["sentence"].startswith(f"policy-1 on {name} computes ")
        assert f"slow: policy-1 on {name} computes " in said
        assert cluster.step - began <= MOST_STEPS
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
