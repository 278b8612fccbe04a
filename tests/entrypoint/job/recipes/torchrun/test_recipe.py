"""The recipe `torchrun`: what is refused before it starts, and what the driver gets."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from contract.resources import NodeResources
from entrypoint.commands import plan
from entrypoint.commands.cli import PlannedNodes
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.recipes.recognise import recipe_of
from entrypoint.job.recipes.torchrun.recipe import RECIPE


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


def settings(*job: str, **environ: str) -> Settings:
    given = {"ROLLCALL_RECIPE": "torchrun", "ROLLCALL_RUN_DIR": str(Path.cwd()), **environ}
    return read_settings(given, job)


def test_the_driver_gets_the_words_and_how_to_resume() -> None:
    checkpoint = Path.cwd() / "c-7"
    checkpoint.mkdir()
    (checkpoint / "model").write_text("x")
    given = settings(
        *("train.py", "--lr", "1"),
        ROLLCALL_CHECKPOINTS="c-{step}",
        ROLLCALL_RESUME_ARGS="--resume {checkpoint}",
    )
    driver = (sys.executable, "-P", "-m", "trainer.cluster.launch", "--", "train.py", "--lr", "1")
    assert RECIPE.command(given, None).argv == driver
    assert RECIPE.latest(given) == 7
    command = RECIPE.command(given, 7)
    assert command.argv == (*driver, "--resume", str(checkpoint))
    assert command.env == {"ROLLCALL_RUN_DIR": str(Path.cwd()), "ROLLCALL_RESUME_FROM": "7"}


def test_the_users_number_of_threads_is_passed_on() -> None:
    argv = RECIPE.command(settings("train.py", OMP_NUM_THREADS="6"), None).argv
    assert argv[4:7] == ("--threads", "6", "--")
    environment = json.dumps({"env_vars": {"OMP_NUM_THREADS": "3"}})
    given = settings("train.py", OMP_NUM_THREADS="6", ROLLCALL_RUNTIME_ENV=environment)
    assert RECIPE.command(given, None).argv[5] == "3"


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        ((), "ROLLCALL_JOB is not set, and ROLLCALL_RECIPE=torchrun has no script"),
        (("trian.py",), "trian.py is not a file in "),
        (("torchrun", "--nproc-per-node", "2"), "torchrun has no script"),
        (("deepspeed", "--include", "a:0", "train.py"), "set CUDA_VISIBLE_DEVICES"),
        (("/none/bin/torchrun", "train.py"), "/none/bin/python is not there: give the path of a"),
        (("/none/accelerate", "launch", "train.py"), "/none/python is not there: give the path of"),
    ],
)
def test_what_cannot_run_is_a_fault_before_anything_starts(
    job: tuple[str, ...], fault: str
) -> None:
    (found,) = RECIPE.faults(settings(*job))
    assert fault in found


def test_the_nearest_script_is_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (found,) = RECIPE.faults(settings("trian.py"))
    assert found == f"trian.py is not a file in {tmp_path}: did you mean train.py?"


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        ("accelerate launch --config_file missing.yaml train.py", "missing.yaml is not a file in "),
        ("accelerate launch --config-file=zero.yml train.py", "did you mean zero.yaml?"),
        ("accelerate launch --config_file list.yaml train.py", "list.yaml has no settings"),
        ("accelerate launch --deepspeed_config_file a.json train.py", "a.json is not a file in "),
        ("deepspeed train.py --deepspeed ds.json", "--deepspeed ds.json is not a file in "),
        ("deepspeed train.py --deepspeed_config=half.json", "half.json cannot be read: Expecting"),
        ("torchrun train.py --fsdp_config f.json", "--fsdp_config f.json is not a file in "),
        ("accelerate launch --config_file zero.yaml train.py --deepspeed --lr 1", ""),
        ("deepspeed train.py --deepspeed zero3 --deepspeed_config ~/none/../x", ""),
    ],
)
def test_files_of_settings_are_read_before_anything_starts(job: str, fault: str) -> None:
    Path("zero.yaml").write_text("compute_environment: LOCAL_MACHINE\n")
    Path("list.yaml").write_text("- a\n")
    Path("half.json").write_text("{")
    found = RECIPE.faults(settings(*job.split()))
    assert [fault in one for one in found] == [True] * bool(fault)


def test_files_of_settings_are_those_of_the_working_directory(tmp_path: Path) -> None:
    job = ("deepspeed", "train.py", "--deepspeed", "ds.json")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").touch()
    environment = json.dumps({"working_dir": str(tmp_path / "code")})
    (found,) = RECIPE.faults(settings(*job, ROLLCALL_RUNTIME_ENV=environment))
    assert found.startswith(f"--deepspeed ds.json is not a file in {tmp_path / 'code'}: ")
    (tmp_path / "code/ds.json").write_text("{}")
    assert RECIPE.faults(settings(*job, ROLLCALL_RUNTIME_ENV=environment)) == []
    environment = json.dumps({"working_dir": "https://example.org/code.zip"})
    assert RECIPE.faults(settings(*job, ROLLCALL_RUNTIME_ENV=environment)) == []


def test_a_script_in_a_working_directory_or_on_the_path_is_not_looked_for_here() -> None:
    environment = json.dumps({"working_dir": "https://example.org/code.zip"})
    assert RECIPE.faults(settings("other.py", ROLLCALL_RUNTIME_ENV=environment)) == []
    brought = settings("env/bin/torchrun", "other.py", ROLLCALL_RUNTIME_ENV=environment)
    assert RECIPE.faults(brought) == []
    elsewhere = settings("/none/torchrun", "other.py", ROLLCALL_RUNTIME_ENV=environment)
    assert len(RECIPE.faults(elsewhere)) == 1
    assert RECIPE.faults(settings("-m", "trl.scripts.sft")) == []
    assert RECIPE.faults(settings("train.py")) == []


def test_plan_shows_the_ranks_of_each_node_and_the_gpus_without_one() -> None:
    given = settings(
        *("torchrun", "--nproc-per-node", "4", "-m", "json.tool"),
        EXPECTED_WORKERS="1",
        ROLLCALL_NUM_GPUS="8",
    )
    layout = plan.plan(given, PlannedNodes(gpus=(8, 8)))["layout"]
    assert [(group["nodes"], group["per_node"]) for group in layout["groups"]] == [(2, 4)]
    assert layout["note"] == "8 ranks"
    assert "worker-1 has 4 GPUs without a rank" in layout["idle"]


def test_nodes_that_have_too_few_gpus_cannot_hold_the_job() -> None:
    given = settings("torchrun", "--nproc-per-node", "8", "train.py")
    small = NodeResources(name="gn12", gpus=4)
    (lacking,) = RECIPE.placed(given, [NodeResources(name="gn11", gpus=8), small]).lacking
    assert lacking.startswith("gn12 has 4 GPUs")
    assert RECIPE.placed(settings("train.py"), [small]).lacking == ()


@pytest.mark.parametrize(
    ("mode", "flags", "is_told"),
    [
        ("FSDP", (), True),
        ("DEEPSPEED", ("--num_processes", "2"), True),
        ("FSDP", ("--config_file", "other.yaml"), False),
        ("FSDP", ("--use_deepspeed",), False),
        ("FSDP", ("--cpu",), False),
        ("MULTI_GPU", (), False),
        ("'NO'", (), False),
        ("NO", (), False),
        ("{", (), False),
    ],
)
def test_the_mode_of_accelerates_default_file_is_not_dropped_without_a_word(
    tmp_path: Path, mode: str, flags: Sequence[str], *, is_told: bool
) -> None:
    file = tmp_path / "accelerate/default_config.yaml"
    file.parent.mkdir()
    file.write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: {mode}\n")
    given = settings("accelerate", "launch", *flags, "train.py", HF_HOME=str(tmp_path))
    said = [one for one in RECIPE.warnings(given) if "--config_file" in one]
    assert [f"{file} chooses {mode}, " in one for one in said] == [True] * is_told


def test_the_numbers_of_accelerates_file_are_those_of_the_roll(tmp_path: Path) -> None:
    file = tmp_path / "zero3.yaml"
    file.write_text("distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 16\n")
    given = settings("accelerate", "launch", "--config_file", str(file), "train.py")
    (said,) = RECIPE.warnings(given)
    assert f"{file} has num_machines: 2 and num_processes: 16, which has no effect here" in said
    assert said.endswith("each has one process for each GPU")
    file.write_text("distributed_type: DEEPSPEED\n")
    assert not RECIPE.warnings(given)


def test_plan_says_both_what_has_no_effect_and_what_does_not_fit() -> None:
    given = settings(
        *("torchrun", "--nnodes", "2", "--nproc-per-node", "8", "train.py"),
        EXPECTED_WORKERS="1",
        ROLLCALL_NUM_GPUS="4",
    )
    row = plan.plan(given, PlannedNodes(gpus=(4, 4)))
    said = [fault["problem"].partition(" has ")[0] for fault in row["faults"]]
    assert said == [given.node_name, "worker-1"]
    assert row["faults"][0]["remedy"] == "Start fewer processes on each node"
    assert "torchrun --nnodes 2: no effect here" in row["warnings"][0]


@pytest.mark.parametrize(
    ("job", "recipe"),
    [
        ("torchrun train.py", "torchrun"),
        ("NCCL_DEBUG=INFO torchrun train.py", "torchrun"),
        ("accelerate launch train.py", "torchrun"),
        ("accelerate config", "command"),
        ("deepspeed train.py", "torchrun"),
        ("python train.py", "command"),
        ("--pretrain m", "builtin"),
    ],
)
def test_a_submitted_job_of_a_launcher_runs_on_all_nodes(job: str, recipe: str) -> None:
    assert recipe_of(job.split()) == recipe
