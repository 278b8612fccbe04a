"""Nodes that are lost for ever, or slow, in containers: others take their places."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.container.faults import results
from tests.container.faults.fault import Fault, undergo
from tests.container.faults.table_spares import FAULTS, Brought, Spared, Unattended
from tests.support.podman import missing, podman
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("kind", "fault"), [pytest.param(kind, fault, id=fault.name) for kind, fault in FAULTS]
)
def test_another_node_takes_the_place_in_time_and_the_run_shows_no_scar(
    tmp_path: Path, request: pytest.FixtureRequest, kind: type[Spared], fault: Fault[Spared]
) -> None:
    if reason := missing():
        pytest.skip(reason)
    with kind(tmp_path / "cluster", request.getfixturevalue("data")) as cluster:
        cluster.boot()
        results.keep(fault.sentence, undergo(cluster, fault))


def test_the_worker_that_leads_after_the_head_is_lost_has_another_node_brought(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if reason := missing():
        pytest.skip(reason)
    with Unattended(tmp_path / "cluster", request.getfixturevalue("data")) as cluster:
        cluster.boot()
        cluster.nodes.pop("head").remove()
        cluster.watch.event("head-moved", within=120)
        cluster.until(lambda: bool(cluster.asked_for()), "request", within=120)
        cluster.another()
        cluster.until(lambda: cluster.is_whole(), "step with all workers", within=200)
        assert cluster.asked_for() == ["head"]
        assert cluster.faults() == []
        assert_no_step_is_lost_or_done_twice(cluster.run)


def test_a_head_that_was_frozen_for_a_minute_asks_for_no_node(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its workers live, and it has not heard them for longer than ROLLCALL_NODE_TIMEOUT."""
    if reason := missing():
        pytest.skip(reason)
    with Brought(tmp_path / "cluster", request.getfixturevalue("data")) as cluster:
        cluster.boot()
        head = cluster.nodes["head"].id
        podman("pause", head)
        time.sleep(60)
        podman("unpause", head)
        cluster.watch.goes_on(within=150)
        time.sleep(20)
        assert cluster.events("node-needed") == []
        assert cluster.asked_for() == []
        assert cluster.faults() == []
