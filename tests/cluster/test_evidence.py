"""The reason that a head gives for its exit code, after lines that a real Ray has relayed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.relaying_job import REASON, RELAYED
from tests.support.node_cluster import HEAD, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(300)]

WORKER = 1
PROGRAM = Path(__file__).with_name("relaying_job.py")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A run whose driver has ended with 64."""
    root = tmp_path_factory.mktemp("relays") / "nodes"
    cluster = Cluster(root, workers=1, job=(sys.executable, str(PROGRAM)))
    try:
        cluster.start(HEAD, WORKER)
        assert cluster.exit_codes(within=200) == {HEAD: 64, WORKER: 64}
        yield cluster
    finally:
        cluster.close()


def test_ray_relays_a_worker_s_lines_in_colours_after_the_driver_s_own_error(
    ended: Cluster,
) -> None:
    """Otherwise the test below would prove nothing."""
    _, said, after = (ended.run.logs / "attempt-1.log").read_text().partition(REASON)
    assert said
    by_ray = re.findall(r"^(?:\x1b\[\d+m)+\(Actor pid=\d+, ip=\S+\)\x1b\[0m (.+)$", after, re.M)
    for words in RELAYED:
        assert any(words in line for line in by_ray), after


def test_the_reason_is_the_driver_s_own_error_without_colours(ended: Cluster) -> None:
    (failure,) = ended.events("failure")
    assert failure["sentence"] == f"usage: {REASON}"
    assert REASON in ended.said(HEAD)
    assert "\x1b" not in ended.run.journal.read_text() + ended.said(HEAD)
