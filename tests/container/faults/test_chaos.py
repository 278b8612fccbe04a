"""The nemesis of chaos.py: what it draws, and five minutes of it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.container.faults import chaos

SEED, MINUTES = 265, 5.0


def drawn(seed: int, count: int) -> list[tuple[float, str]]:
    return [(blow.pause, blow.fault.name) for blow in itertools.islice(chaos.blows(seed), count)]


def test_the_same_seed_draws_the_same_faults_at_the_same_moments() -> None:
    assert drawn(3, 40) == drawn(3, 40)
    assert drawn(3, 40) != drawn(4, 40)


@pytest.mark.faults
@pytest.mark.timeout(1000)
def test_a_run_survives_five_minutes_of_chaos(tmp_path: Path) -> None:
    assert chaos.play(tmp_path, SEED, MINUTES)
