"""What the benchmarks of two gloo ranks count: elements in collectives, and equal bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import fsdp
from bench.alternatives import overlap
from bench.sides import snapshots
from bench.sides.gloo import on_ranks
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    write_model(TinyModel(hidden_size=16, layers=2, heads=2, max_length=32), None, path)
    return path


def test_only_deepspeeds_own_way_sends_in_a_snapshot(model: Path) -> None:
    found = on_ranks(2, snapshots.of_stages, model)
    for of_rank in found:
        assert {stage: sides["ours"]["elements"] for stage, sides in of_rank.items()} == {
            1: 0, 2: 0, 3: 0,
        }  # fmt: skip
        gathered = {stage: sides["gathers"]["elements"] for stage, sides in of_rank.items()}
        assert gathered == pytest.approx({1: 3, 2: 3, 3: 3}, rel=0.1)


def test_overlap_ends_with_the_same_bits(model: Path) -> None:
    found = on_ranks(2, overlap.trained_by_all, model)
    for stage in overlap.STAGES:
        assert overlap.compared([of_rank[stage] for of_rank in found])["equal"]


SENT = {
    "zero1": {"reduce": 1, "gather": 1},
    "zero2": {"reduce": 3, "gather": 1},
    "zero3": {"scatter": 3, "gather": 3},
    "fsdp": {"scatter": 1, "gather": 1},
    "fsdp_reshard": {"scatter": 1, "gather": 6},
}
"""Elements for each parameter in an update of three passes."""


@pytest.mark.parametrize("side", fsdp.SIDES)
def test_what_an_update_sends(side: str, tmp_path: Path) -> None:
    model = fsdp.write(tmp_path / "model", layers=2, hidden=32)
    row: dict[str, Any] = fsdp.measured(model, side, 1, compiles=False)
    sent = {kind: count for kind, count in row["elements"].items() if count > 0.1}
    assert sent == pytest.approx(SENT[side], abs=0.25, rel=0.15)
    assert row["loss"] == pytest.approx(6.94, abs=0.1)
