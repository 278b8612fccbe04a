"""Nodes that are lost for ever, in containers, with a spare."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.container.faults import results
from tests.container.faults.fault import Fault, undergo
from tests.container.faults.standing import Standing
from tests.container.faults.table_spares import FAULTS, Spared
from tests.support.podman import missing

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def standing(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Standing[Spared]]:
    if reason := missing():
        pytest.skip(reason)
    data = request.getfixturevalue("data")
    root = tmp_path_factory.mktemp("spares")
    standing = Standing(lambda n: Spared(root / str(n), data))
    yield standing
    standing.close()


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in FAULTS])
def test_another_node_takes_the_place_in_time_and_the_run_shows_no_scar(
    standing: Standing[Spared], fault: Fault[Spared]
) -> None:
    results.keep(fault.sentence, undergo(standing.scene(), fault))
