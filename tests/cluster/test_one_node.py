"""A cluster of one node: the smallest, and the quickest to ask something of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import failing_calls
from tests.support.node_cluster import HEAD, Cluster, result

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "one", workers=0)
    places = (cluster.run.root, cluster.ray_home(HEAD))
    cluster.own[HEAD] = failing_calls.variables(*places, notes=tmp_path / "calls")
    cluster.own[HEAD]["ROLLCALL_START_ID"] = "job-uid-1"
    try:
        cluster.start(HEAD)
        cluster.goes_on(within=90)
        yield cluster
    finally:
        cluster.close()


@pytest.mark.faults
def test_stop_saves_and_ends_with_143_and_the_same_start_and_a_finished_run_do_not_begin_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    said = cluster.said(HEAD)
    assert "EXPECTED_WORKERS=0" in said
    assert "Connection refused" not in said  # a Ray that starts is not a fault
    assert cluster.ask("stop").returncode == 0
    assert cluster.exit_codes(within=60) == {HEAD: 143}
    assert result(cluster)["outcome"] == "stopped"
    assert cluster.left() == []
    _preflight_has_tried_each_call(tmp_path)
    (cluster.run.root / "finish").touch()
    cluster.start(HEAD)
    assert cluster.exit_codes(within=60) == {HEAD: 0}
    assert "start all nodes with another ROLLCALL_START_ID" in cluster.said(HEAD)
    assert result(cluster)["outcome"] == "stopped"
    cluster.own[HEAD]["ROLLCALL_START_ID"] = "job-uid-2"
    cluster.start(HEAD)
    assert cluster.exit_codes(within=90) == {HEAD: 0}
    assert result(cluster)["attempts"] == 2
    cluster.start(HEAD)
    assert cluster.exit_codes(within=60) == {HEAD: 0}
    assert "this run is finished already" in cluster.said(HEAD)
    assert len(cluster.events("attempt")) == 2


def _preflight_has_tried_each_call(root: Path) -> None:
    """What the node and its Ray did to the run directory, and to Ray's, `doctor` does too."""
    program = """
import sys
from pathlib import Path
from entrypoint.preflight import file_calls
file_calls.tried(Path(sys.argv[1]), file_calls.OF_STORAGE)
file_calls.tried(Path(sys.argv[2]), file_calls.OF_TEMP)
"""
    places = (root / "storage", root / "temp")
    for place in places:
        place.mkdir()
    subprocess.run(
        [sys.executable, "-c", program, *places],
        env=os.environ | failing_calls.variables(*places, notes=root / "tried"),
        check=True,
    )
    for number in (1, 2):
        made = failing_calls.noted(root / "calls", number)
        assert {"create", "append", "rename"} <= made
        assert made <= failing_calls.noted(root / "tried", number)


def test_a_head_with_an_ipv6_address_alone_runs_its_job(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "six", workers=0, job=["true"], ROLLCALL_NODE_ADDRESS="::1")
    try:
        cluster.start(HEAD)
        assert cluster.exit_codes(within=90) == {HEAD: 0}
        assert result(cluster)["outcome"] == "finished"
    finally:
        cluster.close()
