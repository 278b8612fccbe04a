"""What a recipe makes of a command, and what an attempt with it tells."""

from __future__ import annotations

import os
import re
import subprocess
from itertools import groupby
from pathlib import Path

from contract.launch.log_lines import STEP
from contract.resources import NodeResources
from entrypoint.config.settings import Settings
from entrypoint.job.recipes.base import Recipe


def nodes(*gpus: int) -> list[NodeResources]:
    return [NodeResources(name=f"gn{n}", gpus=count) for n, count in enumerate(gpus)]


def launched(recipe: Recipe, given: Settings, resume_from: int | None = None) -> list[str]:
    """What the driver launches on all nodes."""
    argv = recipe.command(given, resume_from).argv
    assert argv[3:5] == ("trainer.cluster.launch", "--steps")
    return list(argv[argv.index("--") + 1 :])


def run(recipe: Recipe, settings: Settings, attempt: int) -> tuple[int, list[int]]:
    """Return the exit code of an attempt, and the steps that its log tells."""
    command = recipe.command(settings, recipe.latest(settings))
    env = {**os.environ, **command.env, "ROLLCALL_ATTEMPT": str(attempt)}
    done = subprocess.run(command.argv, env=env, capture_output=True, text=True, check=False)
    return done.returncode, _steps(done.stdout, recipe.step_pattern(settings))


def steps_told(root: Path) -> list[int]:
    """Return the steps of transformers' Trainer in the log of the first attempt's rank 0.

    A step is told again when its checkpoint is complete.
    """
    steps = _steps((root / "logs" / "attempt-1-rank-0.log").read_text(), STEP)
    return [step for step, _ in groupby(steps)]


def _steps(log: str, pattern: re.Pattern[str] | None) -> list[int]:
    assert pattern is not None
    return [int(match["step"]) for match in map(pattern.search, log.splitlines()) if match]
