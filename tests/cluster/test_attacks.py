"""Every server of the product, attacked as a stranger of its network would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.attacks import http

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_attacks_over_http_find_nothing(tmp_path: Path) -> None:
    assert http.attacked(tmp_path) == []
