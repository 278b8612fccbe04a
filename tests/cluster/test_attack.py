"""A real head, worker, reward server and retrieval server, attacked from the network and inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.attack.run import attacked

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(800)]


@pytest.mark.faults
def test_attacks_find_nothing(tmp_path: Path) -> None:
    """What an attack finds counts if it finds it again: a busy machine delays answers."""
    first = [result for result in attacked(tmp_path / "first") if result.findings]
    for result in first:
        print(result)
    names = [result.name for result in first]
    again = attacked(tmp_path / "again", names) if names else ()
    assert [str(result) for result in again if result.findings] == []
