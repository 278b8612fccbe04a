"""A stand-in for verl's trainer, with the recipe's command lines: a crash, and a resume."""

from __future__ import annotations

import sys
from pathlib import Path

from entrypoint.config.read import read_settings
from entrypoint.job.recipes.verl.recipe import RECIPE
from tests.support import verl_stand_in
from tests.support.recipe_commands import run


def test_after_a_crash_the_steps_go_on_after_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    overrides = ("trainer.device=cpu", "trainer.total_training_steps=12", "trainer.save_freq=2")
    job = (sys.executable, str(Path(verl_stand_in.__file__)), *overrides)
    environ = {"ROLLCALL_RECIPE": "verl", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(environ, job)
    assert RECIPE.faults(settings) == []
    assert RECIPE.placed(settings, []).lacking == ()
    assert run(RECIPE, settings, attempt=1) == (1, list(range(1, 8)))
    assert (tmp_path / "verl/global_step_8").is_dir(), "half written"
    assert RECIPE.latest(settings) == 6
    assert run(RECIPE, settings, attempt=2) == (0, list(range(7, 13)))
    assert RECIPE.latest(settings) == 12
