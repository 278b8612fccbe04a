"""Nodes that are lost for ever, or slow, in containers: others take their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.container.faults import results
from tests.container.faults.fault import Fault, undergo
from tests.container.faults.table_spares import FAULTS, Spared
from tests.support.podman import missing

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
