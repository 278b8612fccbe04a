"""A stand-in for Search-R1's trainer, with the recipe's command lines: a crash, and new weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.log_progress import LogProgress
from entrypoint.job.recipes.search_r1.recipe import RECIPE
from entrypoint.run.journal import Journal
from tests.support import search_r1_stand_in


def run(settings: Settings, attempt: int) -> tuple[int, str, int]:
    """Return the exit code of an attempt, its log, and the newest step of the run."""
    resume_from = RECIPE.latest(settings)
    command = RECIPE.command(settings, resume_from)
    env = {**os.environ, **command.env, "ROLLCALL_ATTEMPT": str(attempt)}
    done = subprocess.run(command.argv, env=env, capture_output=True, text=True, check=False)
    files = RunFiles(settings.run_dir)
    steps = LogProgress(RECIPE, settings, Journal(files.journal, "head"), None)
    steps.added = resume_from or 0
    for line in done.stdout.splitlines():
        steps.read(line)
    steps.publish(last=True)
    progress = Progress.read(files.progress)
    assert progress is not None
    return done.returncode, done.stdout, progress.step


def test_after_a_crash_a_new_attempt_begins_with_the_newest_weights(tmp_path: Path) -> None:
    overrides = ("trainer.device=cpu", "trainer.total_training_steps=13", "trainer.save_freq=2")
    models = ("actor_rollout_ref.model.path=base", "critic.model.path=base")
    job = (sys.executable, str(Path(search_r1_stand_in.__file__)), *overrides, *models)
    environ = {"ROLLCALL_RECIPE": "search-r1", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(environ, job)
    assert RECIPE.faults(settings) == []
    code, log, step = run(settings, attempt=1)
    assert (code, step) == (1, 7)
    assert "actor_rollout_ref begins with base" in log
    assert RECIPE.latest(settings) == 6, "the critic's step 8 is missing"
    code, log, step = run(settings, attempt=2)
    assert (code, step) == (0, 12)
    for role in ("actor", "critic"):
        assert f"begins with {tmp_path}/search-r1/{role}/global_step_6" in log
    assert RECIPE.latest(settings) == 12
    assert (tmp_path / "search-r1/after_6/actor/global_step_6").is_dir()
