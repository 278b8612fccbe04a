"""The key that guides write on the command line is in no process list."""

from __future__ import annotations

import pytest

from contract.options import ConfigError
from entrypoint.config import wandb_key
from entrypoint.config.read import read_settings
from entrypoint.job.recipes import base as recipes

KEY = "0123456789abcdef"


@pytest.mark.parametrize("flag", wandb_key.FLAGS)
@pytest.mark.parametrize("form", ["two words", "one word"])
def test_the_key_of_the_job_s_flag_goes_by_the_environment(flag: str, form: str) -> None:
    given = [flag, KEY] if form == "two words" else [f"{flag}={KEY}"]
    settings = read_settings({"RAY_WORKER": "0"}, [*given, "--seed", "1"])
    argv = recipes.load("builtin").command(settings, None).argv
    assert KEY not in " ".join(argv)
    assert " ".join(argv).count(flag) == 1
    assert settings.wandb_api_key is not None
    assert settings.wandb_api_key.reveal() == KEY


@pytest.mark.parametrize("flag", wandb_key.FLAGS)
def test_a_placeholder_is_a_fault_of_the_flag_that_has_it(flag: str) -> None:
    """It is shown if it stands in brackets; else it may be a key."""
    for given, shown in (("{wandb_token}", r"\{wandb_token\}"), ("your_key", r"\*+")):
        told = f"^{flag}: is a guide's placeholder.*{shown}"
        with pytest.raises(ConfigError, match=told):
            read_settings({"RAY_WORKER": "0"}, [flag, given])


@pytest.mark.parametrize(
    "job", [["--use_wandb", "true"], ["--use_wandb"], ["--use_wandb", "--seed", "1"], []]
)
def test_a_switch_is_no_key(job: list[str]) -> None:
    assert wandb_key.taken_from(job) == (tuple(job), None)


def test_another_framework_gets_its_arguments_as_they_are() -> None:
    settings = read_settings(
        {"ROLLCALL_RECIPE": "command", "ROLLCALL_JOB": f"python train.py --use_wandb {KEY}"}
    )
    assert KEY in settings.job
    assert settings.wandb_api_key is None
