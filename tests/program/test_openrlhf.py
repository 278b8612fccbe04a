"""A stand-in for OpenRLHF's trainer, with the recipe's command lines: a crash, and a resume."""

from __future__ import annotations

import sys
from pathlib import Path

from entrypoint.config.read import read_settings
from entrypoint.job.recipes.openrlhf.recipe import RECIPE
from tests.support import openrlhf_stand_in
from tests.support.recipe_commands import run


def test_after_a_crash_between_actor_and_critic_both_go_on_at_the_same_step(
    tmp_path: Path,
) -> None:
    flags = ("--train.steps", "12", "--ckpt.save_steps", "2")
    job = (sys.executable, str(Path(openrlhf_stand_in.__file__)), *flags)
    environ = {"ROLLCALL_RECIPE": "openrlhf", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(environ, job)
    assert RECIPE.faults(settings) == []
    assert run(RECIPE, settings, attempt=1) == (1, list(range(1, 9)))
    assert (tmp_path / "openrlhf/_actor/latest").read_text() == "global_step8"
    assert RECIPE.latest(settings) == 6
    assert run(RECIPE, settings, attempt=2) == (0, list(range(7, 13)))
    assert RECIPE.latest(settings) == 12
    assert (tmp_path / "hf/config.json").is_file()
