"""Which models and policies stay on disk beside the checkpoints."""

from __future__ import annotations

from pathlib import Path

from contract.manifest import steps_on_disk
from tests.support.tiny_run import GRPO, Tiny, train
from trainer.checkpoint.retention import OnDisk, Retention, superfluous


def test_models_without_checkpoints_all_stay_as_in_openrlhf(tiny: Tiny, run_dir: Path) -> None:
    alone = {"disable_ds_ckpt": True, "save_hf_ckpt": True, "save_steps": 1}
    train(tiny.config(run_dir, max_steps=3, max_ckpt_num=1, **alone, **GRPO))
    left = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert left == ["global_step_1_hf", "global_step_2_hf", "global_step_3_hf"]


def test_a_users_file_beside_the_best_policy_ends_no_run(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, eval_dataset=tiny.held_out, max_steps=1, **GRPO)
    (config.files.best / ".global_step_7.incoming").mkdir(parents=True)  # of a save that was killed
    (config.files.best / "notes.txt").write_text("the user's")
    train(config)
    left = sorted(path.name for path in config.files.best.iterdir())
    assert left == ["global_step_1", "notes.txt"]


def test_a_users_directories_beside_checkpoints_and_the_best_policy_stay(
    tiny: Tiny, run_dir: Path
) -> None:
    flags = {"max_steps": 2, "save_steps": 1, "max_ckpt_num": 1, **GRPO}
    config = tiny.config(run_dir, eval_dataset=tiny.held_out, eval_steps=1, **flags)
    mine = ("notes", "global_step_1_mine", "global_step_01", ".global_step_mine")
    for directory in (config.files.best, config.checkpoints):
        for name in mine:
            (directory / name).mkdir(parents=True)
            (directory / name / "mine.txt").write_text("the user's")
    train(config)
    for directory in (config.files.best, config.checkpoints):
        for name in mine:
            assert (directory / name / "mine.txt").exists()
    assert steps_on_disk(config.checkpoints) == [2]
    assert len(steps_on_disk(config.files.best)) == 1


def test_the_newest_whole_checkpoints_stay_within_their_number_and_bytes() -> None:
    found = {step: OnDisk(whole=True, bytes=10) for step in (1, 2, 3)}
    assert superfluous(found, Retention(count=2)) == [1]
    assert superfluous(found, Retention(count=3, bytes=20)) == [1]
    assert superfluous(found, Retention(count=3, bytes=19)) == [2, 1]
    assert superfluous(found, Retention(count=3, bytes=1)) == [2, 1], "the newest always stays"
    torn = OnDisk(whole=False, bytes=10)
    assert superfluous({**found, 4: torn}, Retention(count=3)) == []
    assert superfluous({**found, 2: torn}, Retention(count=3)) == [2]
