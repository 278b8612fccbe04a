"""The settings by which the job of any program is understood."""

from __future__ import annotations

import pytest

from contract.options import ConfigError
from entrypoint.config.read import read_settings


def faults(**environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_settings({"ROLLCALL_RECIPE": "command", **environ}, ["true"])
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("variable", "value", "fault"),
    [
        ("STEP_PATTERN", "step (", "is not a regular expression"),
        ("STEP_PATTERN", r"step (\d+)", "has no group named step"),
        ("STEP_PATTERN", r"(?P<step>\d+) (?P<speed>\S+)", "has a group named speed: the names are"),
        ("CHECKPOINTS", "out/checkpoint", "does not have {step} once"),
        ("CHECKPOINTS", "{step}/{step}", "does not have {step} once"),
        ("CHECKPOINTS", "../c-{step}", "has .."),
        ("CHECKPOINTS", "out**/c-{step}", "has ** in a name: give * in a name"),
        ("RESUME_ARGS", "--resume {path}", "has the placeholder {path}"),
        ("RESUME_ARGS", "--resume {checkpoint}", "and ROLLCALL_CHECKPOINTS is not set"),
        ("RESUME_ARGS", "--resume 'a", "has a quote that is not closed"),
    ],
)
def test_a_setting_that_cannot_be_used_says_what_would_be_right(
    variable: str, value: str, fault: str
) -> None:
    (found,) = faults(**{f"ROLLCALL_{variable}": value})
    assert found.startswith(f"ROLLCALL_{variable}")
    assert fault in found


@pytest.mark.parametrize(
    ("name", "value"),
    [("STEP_PATTERN", r"(?P<step>\d+)"), ("CHECKPOINTS", "c-{step}"), ("RESUME_ARGS", "--resume")],
)
def test_the_builtin_trainer_takes_none_of_them(name: str, value: str) -> None:
    environ = {"ROLLCALL_RECIPE": "builtin", f"ROLLCALL_{name}": value}
    (fault,) = faults(**environ)
    assert "is set, and the recipe is builtin, which takes none" in fault
    with_jobs = {**environ, "ROLLCALL_WAIT_FOR_JOBS": "1"}
    assert read_settings(with_jobs).waits_for_jobs, "a submitted job may be any program"
