"""A real head, worker, reward server and retrieval server, attacked from the network and inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.attack.run import attacked

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_attacks_find_nothing(tmp_path: Path) -> None:
    assert [str(result) for result in attacked(tmp_path) if result.findings] == []
