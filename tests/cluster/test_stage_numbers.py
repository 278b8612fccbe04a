"""Numbers of supervised stages on several ranks, and under ZeRO, are those of float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import stage_numbers
from tests.support.stage_numbers import STAGES
from tests.support.tiny_run import Tiny, to_argv

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def models(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what one rank makes of them, in a directory named as the stage."""
    root = tmp_path_factory.mktemp("stages")
    stage_numbers.write_models(tiny.model, root)
    for stage in STAGES:
        stage_numbers.trained(stage, root, root / stage)
    return root


@pytest.mark.parametrize(
    ("ranks", "zero", "size"), [pytest.param(3, 0, 2, marks=pytest.mark.faults), (2, 3, 1)]
)
def test_ranks_give_the_numbers_of_float64(
    ranks: int, zero: int, size: int, models: Path, tmp_path: Path
) -> None:
    flags = {"micro_train_batch_size": size, "zero_stage": zero}
    runs = {
        stage: stage_numbers.flags_of(stage, models, tmp_path / stage, **flags) for stage in STAGES
    }
    runs["packed"] = {**runs["sft"], "packing_samples": True, "run_dir": tmp_path / "packed"}
    words = [["sft" if name == "packed" else name, *to_argv(runs[name])] for name in runs]
    (tmp_path / "words.json").write_text(json.dumps(words))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "tests.cluster.stages_job", tmp_path / "words.json"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for name in runs:
        stage = "sft" if name == "packed" else name
        rows, alone = (
            stage_numbers.rows_of(at / own) for at, own in ((tmp_path, name), (models, stage))
        )
        first, last = stage_numbers.by_hand(stage, models), rows[-1]
        assert rows[0]["train/loss"] == pytest.approx(first["loss"], rel=1e-5), name
        assert rows[0]["train/acc"] == pytest.approx(first["accuracy"], rel=1e-6), name
        end = stage_numbers.by_hand(stage, models, tmp_path / name / "hf")
        assert last["eval/loss"] == pytest.approx(end["loss"], rel=1e-4), name
        assert last["eval/accuracy"] == pytest.approx(end["accuracy"], rel=1e-6), name
        assert len(rows) == len(alone) == 4, name
        for own, one in zip(rows, alone, strict=True):
            assert own == pytest.approx(one, rel=1e-3), name
