"""`plan pipeline` says what is wrong with any stage, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support.plan_command import run_plan

STAGES = {
    "first": "python3 -c 'print(1)'",
    "second": "python3 -m json.tool {stage.first.run}/made.json",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "stages.yaml"


def write(file: Path, **stages: str) -> None:
    rows = [{"name": name, "job": job} for name, job in stages.items()]
    file.write_text(yaml.safe_dump({"stages": rows}))


def test_each_stage_has_its_own_plan_and_the_run_directory_that_it_would_have(file: Path) -> None:
    write(file, **STAGES)
    done = run_plan({}, "--json", "pipeline", str(file))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(name, row["recipe"]) for name, row in rows.items()] == [
        ("first", "command"),
        ("second", "command"),
    ]
    assert rows["second"]["run_dir"] == "/checkpoints/jobs/second"
    assert rows["second"]["job"].endswith(" /checkpoints/jobs/first/made.json")


def test_a_fault_of_a_later_stage_is_told_and_a_model_that_comes_is_none(file: Path) -> None:
    job = "--pretrain {stage.first.model} --prompt_data /no/such.jsonl --remote_rm_url gsm8k"
    write(file, **STAGES, ppo=job)
    done = run_plan({}, "pipeline", str(file))
    assert done.returncode == 64
    assert "--prompt_data: no such file" in done.stderr
    assert "--pretrain" not in done.stderr
    write(file, **STAGES, ppo=f"{job} --actor_learning_rat 1")
    assert "--actor_learning_rat: unknown flag" in run_plan({}, "pipeline", str(file)).stderr


def test_a_model_that_an_earlier_stage_puts_elsewhere_is_a_fault(file: Path) -> None:
    sft = "sft --pretrain m --dataset /no/such.jsonl --save_path /elsewhere"
    write(file, sft=sft, ppo="python3 -c 1 {stage.sft.model}")
    said = run_plan({}, "pipeline", str(file)).stderr
    assert "{stage.sft.model} will not be there: in sft, --save_path" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pipeline",), "plan pipeline takes one file"),
        (("pipeline", "/no/such.yaml"), "/no/such.yaml: No such file or directory"),
    ],
)
def test_a_file_that_is_missing_is_said(words: tuple[str, ...], said: str) -> None:
    done = run_plan({}, *words)
    assert (done.returncode, said in done.stderr) == (64, True)


def test_a_reference_to_no_earlier_stage_is_said_with_the_file(file: Path) -> None:
    write(file, first="python3 -c 1 {stage.none.run}")
    done = run_plan({}, "pipeline", str(file))
    assert done.returncode == 64
    assert f"{file}: stage first: {{stage.none.run}}" in done.stderr
