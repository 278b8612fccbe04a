"""A bit that flips on one rank of several: which flips are told, and of which rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.benches import Benches
from tests.support.ranks import Workbench, settings
from trainer.config.options.parallelism import Sharding
from trainer.types import CorruptedRankError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

KINDS = ("weights", "masters", "moments")


@pytest.mark.parametrize(
    "sharding",
    [
        Sharding(),
        *(
            pytest.param(sharding, marks=pytest.mark.faults)
            for sharding in (
                *(Sharding(zero_stage=2), Sharding(zero_stage=3)),
                Sharding(zero_stage=3, zpg=2),
            )
        ),
    ],
    ids=str,
)
def test_a_bit_that_flips_between_two_updates_is_found_on_its_rank(
    benches: Benches, model: Path, sharding: Sharding
) -> None:
    group = benches[2]
    made = settings(model, sharding, mixed_precision=True)
    group.call_ranks(Workbench.build, "policy", made).result()
    group.call_ranks(Workbench.lesson, [1, 2]).result()
    for kind in KINDS:
        group.call_ranks(Workbench.flip, [1], kind).result()
        first, second = group.call_ranks(Workbench.compare).result()
        assert (first, kind) == ("", kind)
        assert second == (
            "policy-1: its memory changed weights or optimizer state that step 2 had written"
        )
        group.call_ranks(Workbench.flip, [1], kind).result()  # back
        assert group.call_ranks(Workbench.compare).result() == ["", ""]


@pytest.mark.parametrize(
    ("stage", "kind"),
    [*((0, kind) for kind in KINDS), pytest.param(2, "weights", marks=pytest.mark.faults)],
)
def test_a_rank_whose_update_differs_from_the_others_is_named(
    benches: Benches, model: Path, stage: int, kind: str
) -> None:
    group = benches[4]
    made = settings(model, Sharding(zero_stage=stage), mixed_precision=True)
    group.call_ranks(Workbench.build, "policy", made).result()
    assert group.call_ranks(Workbench.teach, 1).result() == [""] * 4
    group.call_ranks(Workbench.miscompute, [2], kind).result()
    told = "policy-2: its weights differ from those of 3 other ranks after step 2"
    assert group.call_ranks(Workbench.teach, 2).result() == ["", "", told, ""]


def test_the_call_fails_with_the_ranks_node_and_process(
    benches: Benches, model: Path, tmp_path: Path
) -> None:
    group = benches[2]
    made = settings(model, Sharding(), mixed_precision=True)
    group.call_ranks(Workbench.build, "policy", made).result()
    group.call_ranks(Workbench.teach, 1).result()
    group.call_ranks(Workbench.flip, [1], "weights").result()
    with pytest.raises(CorruptedRankError, match=r"^policy-1, node .*, process \d+: ") as caught:
        group.call_ranks(Workbench.save, tmp_path).result()
    assert caught.value.role == "policy"
