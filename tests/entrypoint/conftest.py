from __future__ import annotations

import pytest

from entrypoint.net import wait


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two attempts of a head."""
    monkeypatch.setattr(wait, "backoff", lambda failures: 0.01 * failures)
