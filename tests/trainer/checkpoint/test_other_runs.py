"""Checkpoints under another name or of another run, in a run that goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from contract.manifest import BROKEN, MANIFEST, checkpoint_path
from entrypoint.config.read import read_settings
from entrypoint.job.recipes.builtin.recipe import RECIPE
from tests.support.saved_states import leaves_of
from tests.support.tiny_run import GRPO, Tiny, events, to_argv, train

FLAGS: dict[str, Any] = {**GRPO, "save_steps": 1, "max_ckpt_num": 9}


def begun(tiny: Tiny, run: Path, run_id: str, steps: int, **more: Any) -> Path:
    """A run of so many steps with an id, as a head gives it; returns its checkpoints."""
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(json.dumps({"run_id": run_id, "fingerprint": "f"}))
    train(tiny.config(run, max_steps=steps, **FLAGS, **more))
    return run / "checkpoints"


def goes_on(tiny: Tiny, run: Path, steps: int, **more: Any) -> list[int]:
    """Train to a step; return where this attempt began, and the step that the head expected."""
    words = to_argv({**tiny.needed(run), **FLAGS, **more})
    settings = read_settings({"ROLLCALL_RUN_DIR": str(run), "ROLLCALL_RECIPE": "builtin"}, words)
    config = tiny.config(run, max_steps=steps, **FLAGS, **more)
    expected = RECIPE.latest(settings)
    train(config)
    return [events(config, "resume")[-1]["details"]["step"], expected or 0]


def test_a_copy_of_a_checkpoint_under_a_later_name_is_put_aside(tiny: Tiny, tmp_path: Path) -> None:
    checkpoints = begun(tiny, tmp_path / "run", "a", 2)
    copy = checkpoint_path(checkpoints, 99999)
    shutil.copytree(checkpoint_path(checkpoints, 2), copy)
    assert goes_on(tiny, tmp_path / "run", 3) == [2, 2]
    (skipped,) = events(tiny.config(tmp_path / "run"), "checkpoint-skipped")
    assert skipped["sentence"] == (
        "Checkpoint global_step_99999 is skipped: its manifest says step 2."
    )
    assert (copy / BROKEN).exists()
    assert goes_on(tiny, tmp_path / "run", 4) == [3, 3]


@pytest.mark.parametrize("seed", [1, 8])
def test_a_checkpoint_of_another_run_is_skipped_and_stays(
    tiny: Tiny, tmp_path: Path, seed: int
) -> None:
    """With another seed, the advice to give that seed would take the stranger in."""
    others = begun(tiny, tmp_path / "other", "b", 4, seed=seed)
    checkpoints = begun(tiny, tmp_path / "run", "a", 2)
    begun(tiny, tmp_path / "alone", "c", 2)
    assert goes_on(tiny, tmp_path / "alone", 3) == [2, 2]
    strange = checkpoint_path(checkpoints, 4)
    shutil.copytree(checkpoint_path(others, 4), strange)
    assert goes_on(tiny, tmp_path / "run", 3) == [2, 2]
    (skipped,) = events(tiny.config(tmp_path / "run"), "checkpoint-skipped")
    assert skipped["sentence"] == "Checkpoint global_step_4 is skipped: it is of another run, b."
    assert (strange / MANIFEST).exists()
    config, alone = (tiny.config(tmp_path / name, **FLAGS) for name in ("run", "alone"))
    assert leaves_of(config, 3) == leaves_of(alone, 3)


def test_a_run_that_begins_goes_on_from_a_copy_of_another(tiny: Tiny, tmp_path: Path) -> None:
    others = begun(tiny, tmp_path / "other", "b", 2)
    run = tmp_path / "run"
    shutil.copytree(others, run / "checkpoints")
    assert begun(tiny, run, "a", 3)
    shutil.rmtree(checkpoint_path(run / "checkpoints", 3))  # the crash came before its first
    assert goes_on(tiny, run, 3) == [2, 2]


def test_a_run_goes_on_from_another_ones_ckpt_path_and_not_from_its_later_steps(
    tiny: Tiny, tmp_path: Path
) -> None:
    others = begun(tiny, tmp_path / "other", "b", 2)
    run = tmp_path / "run"
    begun(tiny, run, "a", 3, ckpt_path=others)
    begun(tiny, tmp_path / "more", "b", 5)
    shutil.copytree(tmp_path / "more/checkpoints/global_step_5", checkpoint_path(others, 5))
    assert goes_on(tiny, run, 4, ckpt_path=others) == [3, 3]


def test_load_step_takes_a_checkpoint_of_another_run_that_it_names(
    tiny: Tiny, tmp_path: Path
) -> None:
    others = begun(tiny, tmp_path / "other", "b", 4)
    checkpoints = begun(tiny, tmp_path / "run", "a", 2)
    shutil.copytree(checkpoint_path(others, 4), checkpoint_path(checkpoints, 4))
    assert goes_on(tiny, tmp_path / "run", 5, load_step=4)[0] == 4
    shutil.rmtree(checkpoint_path(checkpoints, 5))
    assert goes_on(tiny, tmp_path / "run", 5) == [4, 4], "a crash before its own first one"


def test_a_whole_copy_of_a_run_directory_goes_on(tiny: Tiny, tmp_path: Path) -> None:
    begun(tiny, tmp_path / "run", "a", 2)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert goes_on(tiny, tmp_path / "copy", 3) == [2, 2]


def test_other_runs_checkpoints_are_not_deleted_by_the_limit_of_ours(
    tiny: Tiny, tmp_path: Path
) -> None:
    others = begun(tiny, tmp_path / "other", "b", 1)
    checkpoints = begun(tiny, tmp_path / "run", "a", 3)
    shutil.rmtree(checkpoint_path(checkpoints, 1))
    shutil.copytree(checkpoint_path(others, 1), checkpoint_path(checkpoints, 1))
    train(tiny.config(tmp_path / "run", max_steps=4, **(FLAGS | {"max_ckpt_num": 1})))
    left = sorted(path.name for path in checkpoints.iterdir())
    assert left == ["global_step_1", "global_step_4"]
