"""The head is lost for ever: a worker leads the run on, and the head that comes back joins it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.support.node_cluster import HEAD, Cluster
from tests.support.watch import Watch, assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

BOOT_SECONDS = 120
TAKEN_SECONDS = 120
FIRST, SECOND = 1, 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its job is at work; only the head knows the job, and that a worker may take its place."""
    cluster = Cluster(tmp_path_factory.mktemp("failover"))
    cluster.own[HEAD] = {"ROLLCALL_HEAD_FAILOVER": "auto"}
    try:
        cluster.start(HEAD, FIRST, SECOND)
        cluster.event("checkpoint", within=BOOT_SECONDS)
        yield cluster
    finally:
        cluster.close()


def test_a_worker_takes_the_place_of_a_head_that_is_killed_for_ever(cluster: Cluster) -> None:
    steps, began = len(cluster.events("step")), time.time()
    cluster.kill(HEAD)
    step_of_new_head = "step of the new head"
    Watch.until(
        cluster,
        lambda: any(e["epoch"] == 2 for e in cluster.events("step")[steps:]),
        step_of_new_head,
        within=TAKEN_SECONDS,
    )
    print(f"{time.time() - began:.1f} s from the loss of the head to the next step")
    (move,) = cluster.events("head-moved")
    assert move["details"]["before"] == "head"
    assert move["node"] == move["details"]["now"] in ("worker-1", "worker-2")
    roll = cluster.events("roll")[-1]["details"]
    assert (len(roll["present"]), roll["expected"]) == (1, 2)
    assert_no_step_is_lost_or_done_twice(cluster.run)


def test_commands_that_know_the_run_directory_find_the_new_head(cluster: Cluster) -> None:
    state = json.loads(cluster.ask("status", "--json").stdout)
    assert state["head"] == cluster.events("head-moved")[-1]["details"]["now"]
    assert state["page"].startswith(("http://127.0.0.3:", "http://127.0.0.4:"))


def test_the_lost_head_comes_back_as_a_worker_and_the_run_goes_on_with_all_nodes(
    cluster: Cluster,
) -> None:
    # Two heads share one machine here, so the new one has the port that the old one would need.
    cluster.own[HEAD] |= {"ROLLCALL_PREFLIGHT": "off"}
    cluster.start(HEAD)
    Watch.until(
        cluster,
        lambda: (
            cluster.events("attempt")[-1]["epoch"] == 2
            and len(cluster.events("roll")[-1]["details"]["present"]) == 2
        ),
        "roll with the old head",
        within=TAKEN_SECONDS,
    )
    assert "this node joins it" in cluster.said(HEAD)
    attempts = len(cluster.events("attempt"))
    Watch.resumes(cluster, attempts - 1, within=TAKEN_SECONDS)
    (cluster.run.root / "finish").touch()
    assert cluster.exit_codes(within=60) == {HEAD: 0, FIRST: 0, SECOND: 0}
    assert [event["details"]["outcome"] for event in cluster.events("outcome")] == ["finished"]
    assert_no_step_is_lost_or_done_twice(cluster.run)
    assert cluster.left() == []
