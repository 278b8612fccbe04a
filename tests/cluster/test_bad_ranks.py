"""Bits that flip while a rank computes: who is named, and what is made by the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.benches import Benches
from tests.support.ranks import Workbench, settings
from trainer.config.options.parallelism import Sharding
from trainer.workers.pass_check import KNOWN

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

EXPONENT = 30
"""A bit whose flip makes a number of about 1 huge."""
MANTISSA = 22
"""A bit whose flip changes a number by up to a half."""
ALWAYS = 10**9
REPEATS = "the data or the learning rate make it: it repeats on another rank"


def learns(
    benches: Benches,
    model: Path,
    *,
    ranks: int,
    fault: tuple[str, int, int],
    bad: int = 1,
    stage: int = 0,
    compares: int = 0,
    before: int = 0,
) -> list[str]:
    """What each rank says of a step in which the rank `bad` has a fault."""
    group = benches[ranks]
    made = settings(model, Sharding(zero_stage=stage), pass_check_steps=compares)
    group.call_ranks(Workbench.build, "policy", made).result()
    assert group.call_ranks(Workbench.learns, range(1, before + 1)).result() == [""] * ranks
    group.call_ranks(Workbench.disturb, [bad], *fault).result()
    return group.call_ranks(Workbench.learns, [before + 1]).result()


@pytest.mark.faults
@pytest.mark.parametrize("stage", [0, 3])
def test_a_rank_that_always_computes_another_activation_is_named_by_all(
    benches: Benches, model: Path, stage: int
) -> None:
    fault = ("activation", EXPONENT, ALWAYS)
    said = learns(benches, model, ranks=4, fault=fault, bad=2, stage=stage, before=KNOWN)
    assert len(set(said)) == 1
    assert said[0].startswith("CorruptedRankError: policy-2: the policy's loss is ")
    assert "it computes another loss or gradient from rank " in said[0]


def test_a_rank_that_once_computes_another_activation_is_named(
    benches: Benches, model: Path
) -> None:
    fault = ("activation", EXPONENT, 1)
    said = learns(benches, model, ranks=2, fault=fault, stage=2, before=KNOWN)
    assert len(set(said)) == 1
    assert said[0].startswith("CorruptedRankError: policy-1: the policy's loss is ")
    assert said[0].endswith("it computes another loss from the same samples the second time")


def test_a_rank_that_always_computes_another_gradient_is_named(
    benches: Benches, model: Path
) -> None:
    fault = ("gradient", EXPONENT, ALWAYS)
    said = learns(benches, model, ranks=4, fault=fault, bad=3, before=KNOWN)
    assert len(set(said)) == 1
    assert said[0].startswith("CorruptedRankError: policy-3: the gradient's norm is ")


def test_a_gradient_that_is_wrong_once_makes_the_step_repeat_and_names_no_one_right(
    benches: Benches, model: Path
) -> None:
    fault = ("gradient", EXPONENT, 1)
    said = learns(benches, model, ranks=2, fault=fault, before=KNOWN)
    assert len(set(said)) == 1
    assert said[0].startswith("LostWorkerError: the gradient's norm is ")
    assert said[0].endswith("it does not repeat: a rank or the network changed a number once")


def test_with_zero_a_gradient_that_is_not_finite_ends_the_run_and_names_no_one(
    benches: Benches, model: Path
) -> None:
    fault = ("gradient", EXPONENT, 1)
    said = learns(benches, model, ranks=2, fault=fault, stage=2, before=1)
    assert all(one.startswith("TrainingError: the gradient's norm is ") for one in said)


def test_what_the_data_make_is_told_apart_and_ends_the_run(benches: Benches, model: Path) -> None:
    group = benches[2]
    group.call_ranks(Workbench.build, "policy", settings(model, Sharding())).result()
    said = group.call_ranks(Workbench.learns, [1, 2], spoiled=True).result()
    assert said == [f"TrainingError: the policy's loss is nan: {REPEATS}"] * 2


@pytest.mark.parametrize("stage", [0, pytest.param(3, marks=pytest.mark.faults)])
def test_a_small_error_of_a_rank_is_found_by_a_comparison_alone(
    benches: Benches, model: Path, stage: int
) -> None:
    fault = ("activation", MANTISSA, ALWAYS)
    assert learns(benches, model, ranks=4, fault=fault, stage=stage) == [""] * 4
    said = learns(benches, model, ranks=4, fault=fault, stage=stage, compares=1)
    assert len(set(said)) == 1
    assert said[0].startswith("CorruptedRankError: policy-1: a comparison of passes; ")
