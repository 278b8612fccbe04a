"""Page, terminal, metrics and webhook say each fault of a real run; `bench.tell` measures when."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.tell import FAULTS, running
from tests.support.node_cluster import Cluster
from tests.support.time_to_tell import NEVER, Fault, Watchers, measured, mended

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.browser,
    pytest.mark.faults,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def watched() -> Iterator[tuple[Cluster, Watchers]]:
    with running() as cluster_and_watchers:
        yield cluster_and_watchers


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_place_says_the_fault(watched: tuple[Cluster, Watchers], fault: Fault) -> None:
    cluster, watchers = watched
    attempts = len(cluster.events("attempt"))
    told = measured(fault, cluster, watchers)
    assert [place for place, seconds in told.items() if seconds == NEVER] == []
    mended(fault, cluster, attempts)
