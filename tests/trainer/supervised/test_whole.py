"""A step's loss and metrics are those of all its samples, however they are split into passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import stage_numbers
from tests.support.stage_numbers import STAGES
from tests.support.tiny_run import Tiny
from trainer.models.loading import prepare_process
from trainer.supervised import run


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


@pytest.mark.parametrize("stage", STAGES)
def test_one_process_with_two_gpus_uses_one_and_says_so(
    stage: str,
    models: Path,
    tmp_path: Path,
    trainers: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage_numbers.trained(stage, models, tmp_path / "cpu", micro_train_batch_size=2)

    def on_gpus(**given: Any) -> torch.device:
        prepare_process(**given)
        return torch.device("cuda")

    # transformers takes the CPU here, and counts the GPUs as on a machine that has them
    monkeypatch.setattr(run, "prepare_process", on_gpus)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    capsys.readouterr()
    stage_numbers.trained(
        stage, models, tmp_path / "gpus", micro_train_batch_size=2, param_dtype="fp32"
    )
    assert f"torchrun --nproc-per-node 2 -m trainer.supervised {stage}" in capsys.readouterr().err
    assert not isinstance(trainers[-1].model_wrapped, torch.nn.DataParallel)
    one, two = (stage_numbers.rows_of(tmp_path / name) for name in ("cpu", "gpus"))
    assert len(one) == len(two)
    for own, other in zip(one, two, strict=True):
        assert own == pytest.approx(other, rel=1e-6)
