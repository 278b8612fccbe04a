"""What is typed behind `up`, `plan` and the image's name, or stands in ROLLCALL_JOB."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint.__main__ import _is_job
from entrypoint.commands import typed_job
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job import run_identity
from entrypoint.job.recipes import base as recipes
from entrypoint.run import run_began
from tests.support.plan_command import run_plan

VERL = "python3 -m verl.trainer.main_ppo"


def settings(environ: dict[str, str], *words: str) -> Settings:
    typed = typed_job.read(environ, words)
    return read_settings(typed.environ, typed.arguments, typed.recipe)


def test_the_first_line_names_the_recipe_and_what_decides_otherwise(
    tmp_path: Path,
) -> None:
    environ = {"ROLLCALL_RUN_DIR": str(tmp_path)}
    done = run_plan(environ, "--nodes", "2", "nohup", *VERL.split(), "a.b=1")
    first, *rest, verdict = done.stdout.splitlines()
    assert verdict.startswith("verdict  ")
    assert first == (
        "a command of verl: recipe verl; ROLLCALL_RECIPE decides otherwise, and "
        "`rollcall translate -- …` makes it one of the builtin trainer"
    )
    assert "recipe            verl  (command line)" in rest
    assert f"job               {VERL} a.b=1  (command line)" in rest
    assert "belongs to no flag" not in done.stderr
    row = json.loads(run_plan(environ, "--json", *VERL.split(), "a.b=1").stdout)
    assert (row["recipe"], row["sources"]["recipe"]) == ("verl", "command line")


@pytest.mark.parametrize(
    "raw", [f"{VERL} a.b=1", f"cd / && nohup {VERL} a.b=1 2>&1 | tee log", f"{VERL} \\\n a.b=1"]
)
def test_a_command_in_rollcall_job_is_the_same_as_one_behind_the_images_name(
    raw: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = settings({"ROLLCALL_JOB": raw})
    assert (found.recipe, " ".join(found.job)) == ("verl", f"{VERL} a.b=1")
    assert (Path.cwd() == Path("/")) == raw.startswith("cd /"), "the job starts where it goes to"


@pytest.mark.parametrize("raw", ["A=b rollcall up -- --pretrain m", "rollcall up python3 x.py"])
def test_a_head_in_rollcall_job_is_a_fault_of_its_variable(raw: str) -> None:
    with pytest.raises(Exception, match=r"ROLLCALL_JOB.* leave out `rollcall up --`"):
        settings({"ROLLCALL_JOB": raw})


def test_a_line_that_only_a_shell_reads_is_a_fault_of_its_variable() -> None:
    with pytest.raises(Exception, match="has the shell syntax &&, and no shell reads it"):
        settings({"ROLLCALL_JOB": "make && make test"})


def test_flags_stages_and_a_named_recipe_stay_as_they_are() -> None:
    for environ, words, recipe in (
        ({}, ("--pretrain", "m"), "builtin"),
        ({"ROLLCALL_RECIPE": "supervised"}, ("sft", "--pretrain", "m"), "supervised"),
        ({"ROLLCALL_RECIPE": "command"}, ("torchrun", "train.py"), "command"),
        ({"ROLLCALL_RECIPE": "trl"}, ("accelerate", "launch", "train.py"), "trl"),
    ):
        typed = typed_job.read(environ, words)
        assert typed.said == ""
        found = read_settings(typed.environ, typed.arguments, typed.recipe)
        assert (found.recipe, found.job) == (recipe, words)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("no-such-program", "--x"), "give a command that is there"),
        (("train.py", "--x"), "give python3 train.py"),
        (("run.yaml",), "did you mean --config run.yaml?"),
        (("data/train.jsonl",), "did you mean --prompt_data data/train.jsonl?"),
        (("pyhton3", "--x"), "did you mean python3?"),
    ],
)
def test_what_is_no_program_gets_one_message_with_what_would_do(
    words: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    done = run_plan({"ROLLCALL_RUN_DIR": str(tmp_path)}, *words)
    assert done.returncode == 64
    (said,) = done.stderr.splitlines()
    assert said == f"{words[0]} is not a program on this node: {problem}"


@pytest.mark.parametrize(
    ("words", "is_job"),
    [
        (VERL.split(), True),
        (["A=b", *VERL.split()], True),
        (["torchrun", "train.py"], True),
        (["bash", "-c", f"set -x; {VERL} a.b=1"], True),
        (["bash"], False),
        (["sh", "-c", "echo a"], False),
        (["python3", "prepare.py"], False),
        (["trl", "env"], False),
    ],
)
def test_the_image_takes_a_trainers_command_as_a_job_and_executes_any_other_program(
    words: list[str], is_job: bool
) -> None:
    assert _is_job(words) == is_job


def test_a_date_in_a_script_is_that_of_the_runs_begin_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_began.seconds.cache_clear()
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.25)
    environ = {"ROLLCALL_RUN_DIR": str(tmp_path)}
    line = ("bash", "-c", f"{VERL} name=$(date +%s)")
    first = settings(environ, *line)
    assert first.job[-1] == "name=1800000000"
    run_identity.identify(first, RunFiles(tmp_path))
    run_began.seconds.cache_clear()
    monkeypatch.setattr(time, "time", lambda: 1_900_000_000.0)
    assert settings(environ, *line).job == first.job
    assert settings({"ROLLCALL_RUN_DIR": str(tmp_path / "b")}, *line).job[-1] == "name=1900000000"
    run_began.seconds.cache_clear()


@pytest.mark.parametrize(("name", "start"), [("loop.sh", "bash"), ("loop.py", "python3")])
def test_a_program_without_the_right_to_be_executed_is_told_so(
    tmp_path: Path, name: str, start: str
) -> None:
    path = tmp_path / name
    path.write_text("true\n")
    given = read_settings({"RAY_WORKER": "0"}, (str(path),), "command")
    (said,) = recipes.load("command").faults(given)
    remedy = f"chmod +x it, or give {start} {path}"
    assert said == f"{path} lacks the right to be executed: {remedy}"
