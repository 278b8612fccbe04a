"""One cluster of three real nodes, one fault after the other; the run outlives them all."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psutil
import pytest

from entrypoint.processes.process import kill
from tests.support.node_cluster import HEAD, Cluster, result
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

BOOT_SECONDS = 120
FIRST, SECOND = 1, 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Standing, its job at work, after a start in the least convenient order."""
    # Ray alone sees late that a worker is gone, however long that takes to come back; and a save
    # has the time that a busy machine takes for it.
    cluster = Cluster(
        tmp_path_factory.mktemp("faults"),
        DEBUG_RAY="1",
        RAY_health_check_failure_threshold="15",
        ROLLCALL_GRACE_SECONDS="20",
    )
    try:
        cluster.start(FIRST)
        waiting = "waiting for the cluster's token"
        cluster.until_said(FIRST, waiting, within=60)
        cluster.start(HEAD, SECOND)
        cluster.goes_on(within=BOOT_SECONDS)
        yield cluster
    finally:
        cluster.close()


def test_a_worker_started_before_the_head_is_in_the_cluster_that_then_forms(
    cluster: Cluster,
) -> None:
    (roll,) = cluster.events("roll")[:1]
    assert sorted(roll["details"]["present"]) == ["worker-1", "worker-2"]
    assert "joined the Ray cluster" in cluster.said(FIRST)


def test_every_raylet_is_told_of_the_legacy_debugger(cluster: Cluster) -> None:
    """That it is reached from outside, test_debuggers.py shows."""
    for number in cluster.nodes:
        # A fork looks like its raylet until it becomes another program.
        raylet = min(cluster.named(number, "raylet"), key=lambda found: found.create_time())
        assert "--ray-debugger-external=1" in raylet.cmdline()
        assert raylet.environ()["RAY_DEBUG"] == "legacy"


def test_who_uses_no_wandb_hears_nothing_of_its_key(cluster: Cluster) -> None:
    assert "WANDB" not in cluster.said(HEAD)


def test_status_says_who_is_there_and_how_far_the_run_is(cluster: Cluster) -> None:
    cluster.goes_on(within=60)
    state = json.loads(cluster.ask("status", "--json").stdout)
    assert (state["phase"], state["present"], state["missing"]) == ("training", 2, [])
    assert state["progress"]["step"] > 0
    said = cluster.ask("status")
    assert said.returncode == 0
    assert "head: training; 2 of 2 workers" in said.stdout
    assert "worker-1 at 127.0.0.3: there" in said.stdout


def test_logs_shows_the_end_of_every_nodes_log(cluster: Cluster) -> None:
    said = cluster.ask("logs")
    assert said.returncode == 0
    for name in ("head.log", "worker-1.log", "worker-2.log", "attempt-1.log"):
        assert f"==> {name}" in said.stdout


def test_a_wrong_token_is_told_apart_from_no_head(cluster: Cluster) -> None:
    assert cluster.ask("status", ROLLCALL_TOKEN="of-another-cluster").returncode == 77
    nobody = str(cluster.spare_ports.start)
    assert cluster.ask("status", ROLLCALL_CONTROL_PORT=nobody).returncode == 69


def test_a_second_head_on_the_run_directory_is_refused_while_the_first_lives(
    cluster: Cluster,
) -> None:
    ports = cluster.spare_ports
    second = cluster.ask(
        *("up", "--", "true"),
        ROLLCALL_NODE_NAME="second",
        ROLLCALL_RAY_TEMP_DIR=cluster.environment(SECOND)["ROLLCALL_RAY_TEMP_DIR"] + "x",
        ROLLCALL_RAY_PORT=str(ports[0]),
        ROLLCALL_DASHBOARD_PORT=str(ports[1]),
        ROLLCALL_CONTROL_PORT=str(ports[2]),
        ROLLCALL_WORKER_PORTS=f"{ports[3]}-{ports[-1]}",
    )
    assert second.returncode == 73
    assert "is held by a living head" in second.stdout
    cluster.goes_on(within=60)


def test_a_head_whose_ray_dies_revives_it_and_the_run_goes_on_within_90_seconds(
    cluster: Cluster,
) -> None:
    attempts = len(cluster.events("attempt"))
    head = cluster.nodes[HEAD].pid
    kill(cluster.named(HEAD, "raylet"))
    cluster.resumes(attempts, within=90)
    assert psutil.pid_exists(head)


@pytest.mark.faults
def test_a_head_killed_while_a_worker_starts_ray_anew_goes_on_with_it_within_120_seconds(
    cluster: Cluster,
) -> None:
    """Ray on that worker alone would look for the old head for minutes."""
    attempts, run = len(cluster.events("attempt")), json.loads(cluster.run.run.read_text())

    def said(words: str) -> int:
        return cluster.said(SECOND).count(words)

    there = "checked in at the head"
    checked_in, joined, lost = map(said, (there, "joined the Ray", "the head is lost"))
    cluster.kill(SECOND)
    cluster.start(SECOND)
    # By its own word: before it has the head's answer, there is none that it could lose.
    cluster.until(lambda: said(there) > checked_in, "check-in", within=60)
    cluster.kill(HEAD)
    assert cluster.events("node-over")[0]["details"]["node"] == "worker-2"
    assert said("joined the Ray") == joined
    cluster.start(HEAD)
    cluster.resumes(attempts, within=120)
    assert json.loads(cluster.run.run.read_text()) == run
    assert "the head is lost" in cluster.said(FIRST)
    assert said("the head is lost") == lost + 1


def test_sigterm_to_the_head_saves_and_ends_every_node_with_143_within_30_seconds(
    cluster: Cluster,
) -> None:
    cluster.terminate(HEAD)
    assert cluster.exit_codes(within=30) == {HEAD: 143, FIRST: 143, SECOND: 143}
    assert cluster.left() == []
    assert cluster.events("checkpoint")[-1]["details"]["step"] == cluster.step
    assert result(cluster)["outcome"] == "stopped"


def test_a_stopped_run_is_resumed_and_ends_with_0_on_every_node_and_nothing_left(
    cluster: Cluster,
) -> None:
    stopped_at, attempts = cluster.step, len(cluster.events("attempt"))
    cluster.start(HEAD, FIRST, SECOND)
    cluster.resumes(attempts, within=BOOT_SECONDS)
    assert cluster.events("resume")[-1]["details"]["step"] == stopped_at
    (cluster.run.root / "finish").touch()
    assert cluster.exit_codes(within=60) == {HEAD: 0, FIRST: 0, SECOND: 0}
    assert cluster.left() == []
    assert result(cluster)["steps"] == cluster.step


def test_no_step_was_lost_or_done_twice_over_all_faults(cluster: Cluster) -> None:
    assert_no_step_is_lost_or_done_twice(cluster.run)
