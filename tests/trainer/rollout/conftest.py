"""Fixtures of several tests of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from trainer.metrics import step_metrics
from trainer.types import Sample


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """Every sample that any step was made of."""
    samples: list[Sample] = []
    of = step_metrics.of

    def noting(batch: Sequence[Sample], *args: Any) -> Any:
        samples.extend(batch)
        return of(batch, *args)

    monkeypatch.setattr(step_metrics, "of", noting)
    return samples
