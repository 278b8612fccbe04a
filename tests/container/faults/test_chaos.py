"""The nemeses of chaos.py and unattended.py: what they draw, and five minutes of each."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.container.faults import chaos, unattended

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


def test_each_round_of_unattended_chaos_has_every_blow_once_in_the_order_of_its_seed() -> None:
    def names(seed: int) -> list[str]:
        drawn = itertools.islice(unattended.blows(random.Random(seed)), 2 * len(unattended.BLOWS))
        return [blow.name for _, blow in drawn]

    half = len(unattended.BLOWS)
    every = sorted(blow.name for blow in unattended.BLOWS)
    assert names(3) == names(3) != names(4)
    assert sorted(names(3)[:half]) == sorted(names(3)[half:]) == every


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_run_that_nobody_attends_goes_on_though_heads_and_workers_are_lost_for_ever(
    tmp_path: Path,
) -> None:
    assert unattended.play(tmp_path, SEED, MINUTES)
