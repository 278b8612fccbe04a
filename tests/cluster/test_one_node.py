"""A cluster of one node: the smallest, and the quickest to ask something of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_cluster import HEAD, Cluster, result

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "one", workers=0)
    try:
        cluster.start(HEAD)
        cluster.goes_on(within=90)
        yield cluster
    finally:
        cluster.close()


def test_stop_saves_and_ends_the_node_with_143_and_a_finished_run_is_not_begun_again(
    cluster: Cluster,
) -> None:
    said = cluster.said(HEAD)
    assert "EXPECTED_WORKERS=0" in said
    assert "Connection refused" not in said  # a Ray that starts is no fault
    assert cluster.ask("stop").returncode == 0
    assert cluster.exit_codes(within=60) == {HEAD: 143}
    assert result(cluster)["outcome"] == "stopped"
    assert cluster.left() == []
    (cluster.run.root / "finish").touch()
    cluster.start(HEAD)
    assert cluster.exit_codes(within=90) == {HEAD: 0}
    assert result(cluster)["attempts"] == 2
    cluster.start(HEAD)
    assert cluster.exit_codes(within=60) == {HEAD: 0}
    assert "this run is finished already" in cluster.said(HEAD)
    assert len(cluster.events("attempt")) == 2


def test_a_head_with_an_ipv6_address_alone_runs_its_job(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "six", workers=0, job=["true"], ROLLCALL_NODE_ADDRESS="::1")
    try:
        cluster.start(HEAD)
        assert cluster.exit_codes(within=90) == {HEAD: 0}
        assert result(cluster)["outcome"] == "finished"
    finally:
        cluster.close()
