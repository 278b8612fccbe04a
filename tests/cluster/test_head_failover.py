"""The head is lost for ever: a worker leads the run on, and the head that comes back joins it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from contract.exit_codes import ExitCode
from entrypoint.run import token as run_token
from tests.support.node_cluster import HEAD, Cluster
from tests.support.watch import Watch, assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

BOOT_SECONDS = 240
TAKEN_SECONDS = 240
FIRST, SECOND = 1, 2


def bound(number: int) -> dict[str, str]:
    """Each node listens at its own address, as each machine does."""
    return {"ROLLCALL_BIND": f"127.0.0.{2 + number}"}


def url_of(cluster: Cluster, number: int) -> str:
    env = cluster.environment(number)
    return f"http://{env['ROLLCALL_NODE_ADDRESS']}:{env['ROLLCALL_CONTROL_PORT']}"


def leader(cluster: Cluster) -> int:
    """The number of the node that leads since a head was lost."""
    return int(str(cluster.events("head-moved")[-1]["details"]["now"]).removeprefix("worker-"))


def state_at(cluster: Cluster, url: str) -> dict[str, Any]:
    """What `status` says of this address to a person who has no run directory at hand."""
    told = cluster.ask(
        "status", "--json", "--address", url, ROLLCALL_RUN_DIR="/none", **token(cluster)
    )
    assert told.returncode == 0, told.stderr
    state: dict[str, Any] = json.loads(told.stdout)
    return state


def token(cluster: Cluster) -> dict[str, str]:
    return {"ROLLCALL_TOKEN": cluster.run.token.read_text().strip()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its job is at work; only the head knows the job, and that a worker may take its place."""
    cluster = Cluster(tmp_path_factory.mktemp("failover"))
    cluster.own = {number: bound(number) for number in (HEAD, FIRST, SECOND)}
    cluster.own[HEAD] |= {"ROLLCALL_HEAD_FAILOVER": "auto"}
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


def test_without_the_run_directory_any_workers_address_leads_to_the_new_head(
    cluster: Cluster,
) -> None:
    now = leader(cluster)
    old, worker = url_of(cluster, HEAD), url_of(cluster, 3 - now)
    assert state_at(cluster, worker)["head"] == f"worker-{now}"
    assert state_at(cluster, f"{old},{worker}")["page"].startswith(f"{worker}/?")
    alone = cluster.ask("status", "--address", old, ROLLCALL_RUN_DIR="/none", **token(cluster))
    assert alone.returncode == ExitCode.UNREACHABLE
    assert "give the address of another node" in alone.stderr


@pytest.mark.faults
def test_the_lost_head_comes_back_as_a_worker_and_the_run_goes_on_with_all_nodes(
    cluster: Cluster,
) -> None:
    link = f"{url_of(cluster, HEAD)}/?read={run_token.read_only(token(cluster)['ROLLCALL_TOKEN'])}"
    # Two heads share one machine here: the new one has the ports that the old one had, and the
    # old one is given another port for its Ray, as preflight of a head would ask for.
    cluster.own[HEAD] |= {"ROLLCALL_RAY_PORT": "9"}
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
    assert state_at(cluster, url_of(cluster, HEAD))["head"] == f"worker-{leader(cluster)}"
    with httpx.Client(trust_env=False, follow_redirects=True) as browser:
        assert browser.get(link).status_code == 200
        assert "<script>" in browser.get(f"{url_of(cluster, HEAD)}/").text
    (cluster.run.root / "finish").touch()
    assert cluster.exit_codes(within=60) == {HEAD: 0, FIRST: 0, SECOND: 0}
    assert [event["details"]["outcome"] for event in cluster.events("outcome")] == ["finished"]
    assert_no_step_is_lost_or_done_twice(cluster.run)
    assert cluster.left() == []
