"""Which models and policies stay on disk beside the checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_run import GRPO, Tiny, train
from trainer.checkpoint import retention
from trainer.checkpoint.retention import Retention


def test_models_without_checkpoints_are_limited_as_checkpoints_are(
    tiny: Tiny, run_dir: Path
) -> None:
    alone = {"disable_ds_ckpt": True, "save_hf_ckpt": True, "save_steps": 1}
    train(tiny.config(run_dir, max_steps=4, max_ckpt_num=2, **alone, **GRPO))
    left = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert left == ["global_step_3_hf", "global_step_4_hf"]


@pytest.mark.parametrize("rule", [Retention(1), Retention(9, bytes=1)])
def test_the_model_just_written_stays_and_nothing_else_is_touched(
    tmp_path: Path, rule: Retention
) -> None:
    names = ["global_step_1_hf", "global_step_2_hf", "global_step_7_hf", "global_step_1", "own_hf"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("weights")
    retention.apply_to_models(tmp_path, rule, newest=2)
    assert {path.name for path in tmp_path.iterdir()} == {*names} - {"global_step_1_hf"}


def test_a_users_file_beside_the_best_policy_ends_no_run(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, eval_dataset=tiny.held_out, max_steps=1, **GRPO)
    (config.files.best / ".global_step_7.incoming").mkdir(parents=True)  # of a save that was killed
    (config.files.best / "notes.txt").write_text("the user's")
    train(config)
    left = sorted(path.name for path in config.files.best.iterdir())
    assert left == ["global_step_1", "notes.txt"]
