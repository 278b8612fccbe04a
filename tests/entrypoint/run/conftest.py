"""Fixtures of several tests of the run directory."""

from __future__ import annotations

import pytest

from entrypoint.run import lease


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SILENCE_SECONDS", 0.6)
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.1)
