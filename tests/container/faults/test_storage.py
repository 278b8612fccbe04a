"""The run directory's disk is full, read-only, slow, silent, or gone; then it is well again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.faults import results
from tests.container.faults.fault import Fault, undergo
from tests.container.faults.reward import RewardServer
from tests.container.faults.stage import BOOT_SECONDS, make_data
from tests.container.faults.table_storage import (
    FAULTS,
    OnDisk,
)
from tests.support.node_cluster import HEAD

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="disks are mounted by root"),
]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[OnDisk]:
    with RewardServer() as reward:
        stage = OnDisk(tmp_path / "stage", make_data(tmp_path / "data"), reward)
        try:
            stage.start(HEAD)
            stage.goes_on(within=BOOT_SECONDS)
            stage.event("checkpoint", within=60)
            yield stage
        finally:
            stage.close()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_is_survived_in_time_and_the_run_shows_no_scar(
    stage: OnDisk, fault: Fault[OnDisk]
) -> None:
    results.keep(fault.sentence, undergo(stage, fault))
