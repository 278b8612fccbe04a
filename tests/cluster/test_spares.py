"""A spare takes the place of a worker that is lost for ever, on real nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.launch.places import MOVED
from tests.support.node_cluster import HEAD, Cluster
from tests.support.tiny_job import tiny_job
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

NODES = (1, 2)
"""A worker and a spare, whichever joins first."""
MORE_NODES = (*NODES, 3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Policy and critic have two ranks each, one on the head and one on the worker."""
    job = [*tiny_job(tmp_path, 100_000), "--actor_num_nodes", "2", "--save_steps", "50"]
    job[job.index("reinforce")] = "gae"
    job += ["--critic_num_nodes", "2"]
    env = {"ROLLCALL_RECIPE": "builtin", "ROLLCALL_SPARE_WORKERS": "2"}
    cluster = Cluster(tmp_path / "run", workers=1, job=job, **env)
    cluster.plain = True
    yield cluster
    cluster.close()


@pytest.mark.faults
def test_all_ranks_of_a_lost_worker_go_on_at_one_spare_in_the_same_attempt(
    cluster: Cluster,
) -> None:
    def is_there(spares: str) -> None:
        said = f"1 of 1 worker, {spares}"
        cluster.until(lambda: said in cluster.ask("status").stdout, said, within=60)

    cluster.start(HEAD, *MORE_NODES)
    roll = cluster.event("roll", within=120)
    (worker,) = roll["details"]["present"]
    spares = {f"worker-{n}" for n in MORE_NODES} - {worker}
    cluster.until(lambda: cluster.step >= 3, "three steps", within=120)
    is_there("2 spares")  # the roll call waits 5 s for them; Ray may start later on a busy machine
    said = cluster.ask("status").stdout
    assert all(f"{spare} at" in said for spare in spares)
    assert "a spare" in said

    cluster.kill(int(worker[-1]))
    cluster.event(MOVED, within=120)  # a step that was about to end may end without the worker
    cluster.goes_on(within=120)
    (moved,) = cluster.events(MOVED)
    assert moved["details"]["lost"] == worker
    assert moved["details"]["node"] in spares
    assert not cluster.events("failure")
    assert len(cluster.events("attempt")) == 1
    is_there("1 of 2 spares")

    cluster.start(int(worker[-1]))
    is_there("2 spares")
    assert cluster.ask("stop").returncode == 0
    assert set(cluster.exit_codes(within=60).values()) == {143}
    assert_no_step_is_lost_or_done_twice(cluster.run)


def test_where_ray_places_the_work_the_spare_offers_nothing_until_the_next_attempt(
    tmp_path: Path,
) -> None:
    job = tmp_path / "job.py"
    job.write_text(OF_RAY)
    env = {"ROLLCALL_SPARE_WORKERS": "1", "ROLLCALL_NODE_TIMEOUT": "10s"}
    cluster = Cluster(tmp_path / "run", workers=1, job=(sys.executable, str(job)), **env)
    try:
        cluster.start(HEAD, *NODES)
        (worker,) = cluster.event("roll", within=120)["details"]["present"]
        cluster.until(lambda: (cluster.run.root / "working-1").exists(), "work", within=120)
        assert (cluster.run.root / "working-1").read_text() == str([worker, "head"])

        cluster.kill(int(worker[-1]))
        cluster.until(lambda: (cluster.run.root / "working-2").exists(), "work again", within=150)
        spare = next(f"worker-{n}" for n in NODES if f"worker-{n}" != worker)
        assert (cluster.run.root / "working-2").read_text() == str([spare, "head"])
        (moved,) = cluster.events(MOVED)
        assert (moved["details"]["lost"], moved["details"]["node"]) == (worker, spare)
        assert [e["details"]["failure"] for e in cluster.events("failure")] == ["node_lost"]
    finally:
        cluster.close()


OF_RAY = """
import os, ray, time
from pathlib import Path
ray.init()
rows = [row for row in ray.nodes() if row["Alive"] and row["Resources"].get("CPU")]
names = sorted((row["NodeName"] for row in rows), reverse=True)
there = Path(os.environ["ROLLCALL_RUN_DIR"]) / f"working-{os.environ['ROLLCALL_ATTEMPT']}"
there.with_suffix(".new").write_text(str(names))
there.with_suffix(".new").rename(there)
while {row["NodeName"] for row in ray.nodes() if row["Alive"]} >= set(names):
    time.sleep(0.2)
raise SystemExit(1)
"""
