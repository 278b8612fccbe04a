"""A step's loss and metrics are those of all its samples, however they are split into passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import stage_numbers
from tests.support.stage_numbers import STAGES
from tests.support.tiny_run import Tiny


@pytest.fixture(scope="module")
def models(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stages")
    stage_numbers.write_models(tiny.model, root)
    return root


@pytest.mark.parametrize("stage", STAGES)
def test_passes_of_any_size_give_the_numbers_of_float64(
    stage: str, models: Path, tmp_path: Path
) -> None:
    expected = stage_numbers.by_hand(stage, models)
    found = []
    for size in (6, 2):
        stage_numbers.trained(stage, models, tmp_path / str(size), micro_train_batch_size=size)
        found.append(stage_numbers.rows_of(tmp_path / str(size)))
    for rows in found:
        assert rows[0]["train/loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert rows[0]["train/acc"] == pytest.approx(expected["accuracy"], rel=1e-6)
    last = stage_numbers.by_hand(stage, models, tmp_path / "2" / "hf")
    assert found[1][-1]["eval/loss"] == pytest.approx(last["loss"], rel=1e-5)
    assert found[1][-1]["eval/accuracy"] == pytest.approx(last["accuracy"], rel=1e-6)
    for rows in found[1:]:
        assert len(rows) == len(found[0])
        for own, whole in zip(rows, found[0], strict=True):
            assert own == pytest.approx(whole, rel=1e-4)
