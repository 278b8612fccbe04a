"""What is left out of a command as a guide has it, and what replaces it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import base as recipes

CLIENT = 'ray job submit --runtime-env-json=\'{"working_dir": "/code"}\' --'
JOBS = {
    "verl": "python3 -m verl.trainer.main_ppo a.b=1",
    "search-r1": "python3 -m verl.trainer.main_ppo max_turns=4",
    "openrlhf": "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m",
}


def warnings(given: Settings) -> tuple[str, ...]:
    return recipes.warnings(recipes.load(given.recipe), recipes.PlacedJob(settings=given))


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
    warning = warnings(replace(given, waits_for_jobs=waits))[0]
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
    warning = warnings(typed)[0]
    assert warning.startswith("uv run --extra gpu: no effect here")
    assert warning.endswith("if only that one has the program, or one that is given by its path")


def test_variables_of_rays_client_are_not_the_jobs_and_a_wrapper_is_told(tmp_path: Path) -> None:
    """RAY_ADDRESS of the client would lead the driver to another port."""
    environ = {"ROLLCALL_RECIPE": "verl", "ROLLCALL_RUN_DIR": str(tmp_path)}
    program = ("python3", "-m", "verl.trainer.main_ppo", "a.b=1")
    client = ("RAY_ADDRESS=http://h:8265", "ray", "job", "submit", "--no-wait", "--", "A=1")
    given = read_settings(environ, [*client, *program])
    assert recipes.load("verl").command(given, None).env == {
        "A": "1",
        "ROLLCALL_RUN_DIR": str(tmp_path),
    }
    assert f"{client[0]} ray job submit --no-wait --: no effect here" in warnings(given)[0]
    (warning,) = warnings(read_settings(environ, ["uv", "run", *program]))
    assert warning.startswith("uv run: no effect here")


@pytest.mark.parametrize("sign", ["", "+"])
def test_uv_as_the_workers_python_is_replaced_by_the_drivers(tmp_path: Path, sign: str) -> None:
    key = "ray_kwargs.ray_init.runtime_env.py_executable"
    value = "uv -v run --frozen --all-packages --extra vllm"
    job = [
        "uv",
        "run",
        "--frozen",
        "python3",
        "-m",
        "verl.trainer.main_ppo",
        f"{sign}{key}={value}",
    ]
    environ = {"ROLLCALL_RECIPE": "verl", "ROLLCALL_RUN_DIR": str(tmp_path)}
    given = read_settings(environ, job)
    argv = recipes.load("verl").command(given, None).argv
    assert [word for word in argv if key in word] == [f"{key}={sys.executable}"]
    assert not any("py_executable" in fault for fault in recipes.load("verl").faults(given))
    assert warnings(given)[1] == (
        f"{key}={value}: no effect here; the workers' Python is that of the driver, "
        f"{sys.executable}"
    )
