"""A real head and worker, attacked over the network and from the same machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.attack import attacked

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_attacks_find_nothing(tmp_path: Path) -> None:
    assert attacked(tmp_path / "attacked") == []
