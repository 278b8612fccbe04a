"""Settings of the recipe `openrlhf`, and what OpenRLHF gets."""

from __future__ import annotations

import sys
from pathlib import Path

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.recipes.openrlhf.recipe import RECIPE

DRIVER = (sys.executable, "-m", "openrlhf.cli.train_ppo_ray")
RANKS = (sys.executable, "-P", "-m", "trainer.cluster.launch", "--steps", "--")
SHORT = ("--actor.model_name_or_path", "m", "--data.prompt_dataset", "d", "--reward.remote_url=u")


def settings(run: Path, *job: str, **environ: str) -> Settings:
    given = {"ROLLCALL_RECIPE": "openrlhf", "ROLLCALL_RUN_DIR": str(run), **environ}
    return read_settings(given, job)


def flags(given: Settings) -> list[str]:
    """What the driver gets behind the module."""
    argv = RECIPE.command(given, RECIPE.latest(given)).argv
    assert argv[:3] == DRIVER
    return list(argv[3:])
