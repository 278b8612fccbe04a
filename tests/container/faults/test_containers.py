"""Faults of containers, their network and their memory, one after the other in one cluster."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.manifest import newest_checkpoint
from tests.container.clock import WrongClock
from tests.container.cluster import ENDLESS, HEAD_POD_ID, SHORT
from tests.container.faults import results
from tests.container.faults.fault import Fault, undergo
from tests.container.faults.standing import Standing
from tests.container.faults.table_containers import (
    BOOT_SECONDS,
    FAULTS,
    FIRST,
    HEAD,
    Containers,
    drops,
    lets_through,
)
from tests.support.podman import IMAGE, Container, missing

pytestmark = [pytest.mark.timeout(400)]

FAST = [pytest.param(f, id=f.name, marks=pytest.mark.container) for f in FAULTS if f.fast]
SLOW = [pytest.param(f, id=f.name, marks=pytest.mark.faults) for f in FAULTS if not f.fast]


@pytest.fixture(scope="module")
def standing(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Standing[Containers]]:
    if reason := missing():
        pytest.skip(reason)
    data = request.getfixturevalue("data")
    root = tmp_path_factory.mktemp("containers")
    standing = Standing(lambda n: Containers(root / str(n), data))
    yield standing
    standing.close()


@pytest.mark.parametrize("fault", [*FAST, *SLOW])
def test_it_is_survived_in_time_and_the_run_shows_no_scar(
    standing: Standing[Containers], fault: Fault[Containers]
) -> None:
    results.keep(fault.sentence, undergo(standing.scene(), fault))


@pytest.mark.container
def test_podman_stop_of_the_head_ends_all_with_143_and_a_whole_checkpoint_within_30_seconds(
    standing: Standing[Containers],
) -> None:
    cluster = standing.scene()
    cluster.nodes[HEAD].stop(grace=30)
    assert set(cluster.exit_codes(within=30).values()) == {143}
    assert newest_checkpoint(cluster.run.checkpoints) == cluster.watch.step
    assert cluster.faults() == []


@pytest.mark.faults
def test_a_second_head_is_refused_while_the_first_lives_though_no_node_reaches_it(
    standing: Standing[Containers],
) -> None:
    cluster = standing.scene()
    drops(HEAD)(cluster)
    try:
        rival = Container.start(
            f"{cluster.name}-rival",
            *("--user=0:0", "--shm-size=512m", "--pids-limit=-1", "--env=EXPECTED_WORKERS=0"),
            f"--volume={cluster.run.root}:/checkpoints",
            f"--volume={cluster.data}:/data:ro",
            *(IMAGE, "--", *ENDLESS, "--remote_rm_url", "arithmetic"),
        )
        cluster.nodes["rival"] = rival
        assert rival.exit_code(within=30) == 73
        assert "is held by a living head" in rival.said
    finally:
        lets_through(HEAD)(cluster)
    cluster.nodes.pop("rival").remove()
    cluster.watch.goes_on(within=120)
    assert cluster.faults() == []


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_a_clock_that_jumps_ahead_and_back_by_two_hours_costs_no_attempt(
    tmp_path: Path, data: Path
) -> None:
    with Containers(tmp_path / "cluster", data) as cluster:
        clock = WrongClock.made_in(cluster.run.root)
        cluster.head(
            *(*ENDLESS, "--remote_rm_url", "arithmetic"),
            workers=0,
            **clock.variables("/checkpoints"),
        )
        cluster.watch.goes_on(within=BOOT_SECONDS)
        for jump in (7_200, -7_200, 0):
            clock.jump(jump)
            steps = len(cluster.events("step"))
            cluster.watch.event("step", within=40, after=steps + 20)
        hours = {row["at"][:13] for row in cluster.events("step")}
        assert len(hours) >= 3, "the clock did not jump"
        assert len(cluster.events("attempt")) == 1
        assert cluster.faults() == []


@pytest.mark.faults
def test_a_worker_that_reaches_the_head_late_by_a_tenth_of_a_second_each_way_trains(
    tmp_path: Path, data: Path
) -> None:
    with Containers(tmp_path / "cluster", data) as cluster:
        shutil.copy(Path(__file__).with_name("delay.py"), cluster.run.root)
        far = (f"{HEAD_POD_ID}.runpod.internal", "0.1", "6379", "8265", "8267")
        proxy = ("python", "/checkpoints/delay.py", *far)
        cluster.helper("far", *proxy)
        cluster.head(*SHORT, "--remote_rm_url", "arithmetic", workers=1)
        cluster.worker(1, ROLLCALL_HEAD_ADDRESS="far")
        assert cluster.nodes[HEAD].exit_code(within=150) == 0
        assert cluster.nodes[FIRST].exit_code(within=30) == 0
        assert cluster.faults() == []
