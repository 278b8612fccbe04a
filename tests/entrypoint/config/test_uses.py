"""A setting refuses only what needs it: a start with the job, a machine, or a question."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.options import ConfigError
from contract.run_dir import RunFiles
from entrypoint.commands import found_secrets
from entrypoint.config.read import read_settings
from entrypoint.config.settings import declared
from entrypoint.config.uses import OF_JOB, TO_ASK, Use

WORKER = {"RAY_WORKER": "1", "ROLLCALL_HEAD_ADDRESS": "10.0.0.2"}
PATTERN = r"(?P<step>\d+)"
OF_ANOTHER_PROGRAM = [
    {"ROLLCALL_STEP_PATTERN": PATTERN},
    {"ROLLCALL_CHECKPOINTS": "c-{step}"},
    {"ROLLCALL_RESUME_ARGS": "--resume"},
    {"ROLLCALL_RUNTIME_ENV": '{"pip": ["einops"]}'},
]
JOB = [
    *OF_ANOTHER_PROGRAM,
    {"ROLLCALL_STEP_PATTERN": "step ("},
    {"ROLLCALL_RESUME_ARGS": "--resume {checkpoint}"},
    {"ROLLCALL_RECIPE": "no-recipe"},
    {"ROLLCALL_JOB": "cd /a && python job.py"},
    {"ROLLCALL_JOB": "--use_wandb <key>"},
    {"ROLLCALL_JOB": "--pretrain m", "ROLLCALL_WAIT_FOR_JOBS": "1"},
    {"ROLLCALL_NAME": "?"},
    {"ROLLCALL_CHECK_CODE": "perhaps"},
    {"ROLLCALL_RECIPE": "verl", "ROLLCALL_STORAGE": "s3://b/p", "ROLLCALL_TOKEN": "t" * 32},
]
NODE = [
    {"EXPECTED_WORKERS": "two"},
    {"ROLLCALL_NODE_NAME": "a/b"},
    {"ROLLCALL_RAY_PORT": "8267"},
    {"ROLLCALL_STORAGE": "head"},
    {"ROLLCALL_REWARD_COMMAND": "serve"},
    {"ROLLCALL_PREFLIGHT_SKIP": "host.nothing"},
    {"WANDB_API_KEY_FILE": "/no/such/file"},
    {"HF_TOKEN": "<your_token>"},
    {"NCCL_DEBUG": "'INFO'"},
    {"ROLLCALL_STEP_PATERN": PATTERN},
    {"EXPECTED_WORKER": "2"},
    {"RAY_DEBUG": "legacy", "RAY_DEBUG_POST_MORTEM": "1"},
    {"SKYPILOT_NODE_RANK": "first"},
]
QUESTION = [
    {"ROLLCALL_URL": "head"},
    {"ROLLCALL_CONTROL_PORT": "0"},
    {"ROLLCALL_RUN_DIRR": "/run"},
    {"RAY_WORKER": "maybe"},
    {"ROLLCALL_TOKEN_FILE": "/no/such/file"},
    {"ROLLCALL_TLS": "auto", "ROLLCALL_URL": "http://head:8267"},
]


def refused(environ: dict[str, str], use: Use = Use.START) -> bool:
    try:
        read_settings(environ, use=use)
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize("environ", JOB, ids=str)
def test_what_is_only_the_jobs_refuses_its_head_alone(environ: dict[str, str]) -> None:
    assert refused(environ)
    assert not refused(environ | WORKER), "a worker has no job"
    assert not refused(environ, Use.MACHINE)
    assert not refused(environ, Use.ASK)


@pytest.mark.parametrize("environ", NODE, ids=str)
def test_what_only_a_node_needs_refuses_no_question(environ: dict[str, str]) -> None:
    assert refused(environ)
    assert refused(environ, Use.MACHINE)
    assert refused(environ | WORKER) or "SKYPILOT_NODE_RANK" in environ  # RAY_WORKER replaces it
    assert not refused(environ, Use.ASK)


@pytest.mark.parametrize("environ", QUESTION, ids=str)
def test_what_a_question_needs_refuses_it(environ: dict[str, str]) -> None:
    assert all(refused(environ, use) for use in Use)


def test_a_fault_of_a_question_does_not_bring_one_of_the_role() -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings({"ROLLCALL_URL": "head", "RUNPOD_POD_ID": "abc"}, use=Use.ASK)
    assert [fault.path for fault in caught.value.faults] == ["ROLLCALL_URL"]


@pytest.mark.parametrize("environ", OF_ANOTHER_PROGRAM, ids=str)
def test_a_worker_is_checked_for_the_program_that_the_heads_command_line_has(
    environ: dict[str, str],
) -> None:
    assert read_settings(environ | WORKER).recipe == "command"
    assert read_settings(environ, use=Use.MACHINE).recipe == "command"
    named = environ | {"ROLLCALL_RECIPE": "torchrun"}
    assert read_settings(named, use=Use.MACHINE).recipe == "torchrun"
    with_jobs = environ | {"ROLLCALL_WAIT_FOR_JOBS": "1"}
    assert read_settings(with_jobs, use=Use.MACHINE).recipe == "builtin"
    assert read_settings(WORKER).recipe == "builtin"


def test_every_setting_that_counts_for_a_use_is_declared() -> None:
    assert {*OF_JOB, *TO_ASK} <= set(declared())


def test_a_command_that_masks_knows_the_secrets_beside_settings_of_a_job(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token := "60303ae22b998861bce3b28f33eec1be")
    environ = {"ROLLCALL_TOKEN_FILE": str(file), "ROLLCALL_STEP_PATTERN": PATTERN}
    assert token in found_secrets.of(RunFiles(tmp_path), environ)
