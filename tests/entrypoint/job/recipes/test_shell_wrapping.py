"""What is left out of a command as a guide has it, and what replaces it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.job.recipes import base as recipes

CLIENT = 'ray job submit --runtime-env-json=\'{"working_dir": "/code"}\' --'
JOBS = {
    "verl": "python3 -m verl.trainer.main_ppo a.b=1",
    "search-r1": "python3 -m verl.trainer.main_ppo max_turns=4",
    "openrlhf": "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m",
}


@pytest.mark.parametrize("recipe", JOBS)
@pytest.mark.parametrize(
    ("waits", "where"),
    [(False, "in ROLLCALL_RUNTIME_ENV"), (True, "with `rollcall submit --runtime-env`")],
)
def test_a_runtime_environment_of_rays_client_is_given_where_it_counts(
    tmp_path: Path, recipe: str, waits: bool, where: str
) -> None:
    environ = {"ROLLCALL_RECIPE": recipe, "ROLLCALL_RUN_DIR": str(tmp_path)}
    given = read_settings(environ, shlex.split(f"{CLIENT} {JOBS[recipe]}"))
    warning = recipes.load(recipe).warnings(replace(given, waits_for_jobs=waits))[0]
    assert warning.startswith("ray job submit --runtime-env-json=")
    assert warning.endswith(f"the log is in RUN/logs, and a runtime environment is given {where}")


@pytest.mark.parametrize("recipe", JOBS)
def test_uv_run_is_left_out_and_the_warning_says_which_python_it_is(
    tmp_path: Path, recipe: str
) -> None:
    environ = {"ROLLCALL_RECIPE": recipe, "ROLLCALL_RUN_DIR": str(tmp_path)}
    command = recipes.load(recipe).command
    typed, bare = (
        read_settings(environ, f"A=b {wrapper}{JOBS[recipe]}".split())
        for wrapper in ("uv run --extra gpu ", "")
    )
    assert command(typed, None) == command(bare, None)
    warning = recipes.load(recipe).warnings(typed)[0]
    assert warning.startswith("uv run --extra gpu: no effect here")
    assert warning.endswith("if only that one has the program, or one that is given by its path")
