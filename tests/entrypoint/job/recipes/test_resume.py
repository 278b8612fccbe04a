"""What every recipe that resumes by itself owes: the newest complete checkpoint, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes import interpreters
from tests.support import (
    hf_checkpoints,
    openrlhf_checkpoints,
    search_r1_checkpoints,
    verl_checkpoints,
)
from tests.support.hf_checkpoints import torch_file

Damage = Callable[[Path], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    recipe: str
    job: str
    written_to: str
    """Below the run directory."""
    write: Callable[[Path, int], Path]
    """Writes the checkpoint of a step into a directory."""
    parts: tuple[str, ...]
    """The directories of a checkpoint of step 4, below the one that it is written to."""
    resumes: str
    """How a word of the command ends that resumes from step 4; none has it before."""
    damages: tuple[Damage, ...] = field(repr=False)
    """Each makes a directory of the checkpoint incomplete, as a crash may."""


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def lacks_optimizer(path: Path) -> None:
    for file in path.glob("*_optim_states.pt"):
        file.unlink()


def lacks_a_shard(path: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def is_not_dcp_yet(path: Path) -> None:
    (path / "pytorch_model_fsdp_0").mkdir()
    (path / "pytorch_model_fsdp_0" / "__0_0.distcp").write_bytes(b"x")


def is_not_zero_yet(path: Path) -> None:
    torch_file(path / "global_step4" / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (path / "latest").write_text("global_step2")


OF_TRAINER: tuple[Damage, ...] = (
    lambda path: (path / "trainer_state.json").unlink(),
    lambda path: cut(path / "trainer_state.json"),
    lambda path: (path / "trainer_state.json").write_text('{"global_step": 3}'),
    lambda path: cut(path / "model.safetensors"),
    lambda path: (path / "model.safetensors").unlink(),
    lambda path: (path / "model.safetensors").write_bytes(b"x"),
    lambda path: cut(path / "optimizer.pt"),
    lambda path: (path / "rng_state_1.pth").write_bytes(b""),
    lambda path: (path / "checkpoint-is-incomplete.txt").touch(),
    lacks_a_shard,
    is_not_dcp_yet,
    is_not_zero_yet,
)
CASES = (
    Case(
        recipe="openrlhf",
        job="python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m",
        written_to="openrlhf",
        write=openrlhf_checkpoints.checkpoint,
        parts=("_actor/global_step4", "_critic/global_step4"),
        resumes="--ckpt.load_enable",
        damages=(
            lambda path: (path / "mp_rank_00_model_states.pt").unlink(),
            lambda path: (path / "mp_rank_00_model_states.pt").write_bytes(b"PK\3\4"),
            lambda path: (path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").write_bytes(b""),
            lambda path: (path / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink(),
            lacks_optimizer,
            lambda path: path.rename(path.with_name("global_step4_hf")),
        ),
    ),
    Case(
        recipe="verl",
        job="python3 -m verl.trainer.main_ppo data.train_batch_size=8",
        written_to="verl",
        write=verl_checkpoints.checkpoint,
        parts=("global_step_4",),
        resumes="/verl/global_step_4",
        damages=(
            lambda path: (path / "data.pt").unlink(),
            lambda path: (path / "data.pt").write_bytes(b"PK"),
            lambda path: (path / "actor/model_world_size_2_rank_1.pt").unlink(),
            lambda path: (path / "actor/optim_world_size_2_rank_0.pt").write_bytes(b""),
            lambda path: (path / "critic/extra_state_world_size_2_rank_0.pt").unlink(),
            lambda path: (path / "actor").rename(path / "other"),
        ),
    ),
    Case(
        recipe="trl",
        job="trl sft --model_name_or_path m --dataset_name d",
        written_to="hf",
        write=hf_checkpoints.checkpoint,
        parts=("checkpoint-4",),
        resumes="/hf/checkpoint-4",
        damages=OF_TRAINER,
    ),
    Case(
        recipe="supervised",
        job="sft --pretrain org/m --dataset org/d",
        written_to="checkpoints",
        write=hf_checkpoints.checkpoint,
        parts=("checkpoint-4",),
        resumes="/checkpoints/checkpoint-4",
        damages=OF_TRAINER[:1],
    ),
    Case(
        recipe="search-r1",
        job="python3 -m verl.trainer.main_ppo data.train_batch_size=8",
        written_to="search-r1",
        write=search_r1_checkpoints.checkpoint,
        parts=("actor/global_step_4", "critic/global_step_4"),
        resumes="/critic/global_step_4",
        damages=(
            lambda path: (path / "tokenizer_config.json").unlink(),
            lambda path: (path / "tokenizer_config.json").write_text('{"a'),
            lambda path: (path / "config.json").unlink(),
            lambda path: (path / "model-00002-of-00002.safetensors").unlink(),
            lambda path: (path / "model-00001-of-00002.safetensors").write_bytes(b"\xff"),
            lambda path: path.rename(path.with_name("other")),
        ),
    ),
)
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.recipe)


DAMAGES = [(case, part, damage) for case in CASES for part in case.parts for damage in case.damages]


@pytest.fixture(autouse=True)
def no_python_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "_said", lambda *_: None)


def settings(case: Case, run: Path) -> Settings:
    given = {"ROLLCALL_RECIPE": case.recipe, "ROLLCALL_RUN_DIR": str(run)}
    return read_settings(given, case.job.split())


def resumed_from(case: Case, given: Settings) -> tuple[int | None, str, bool]:
    """The newest step, the one that the job's variable names, and whether its words resume."""
    recipe = recipes.load(case.recipe)
    newest = recipe.latest(given)
    command = recipe.command(given, newest)
    says = any(word.endswith(case.resumes) for word in command.argv)
    return newest, command.env.get("ROLLCALL_RESUME_FROM", ""), says


@each
def test_a_run_without_a_checkpoint_begins_at_its_beginning(case: Case, tmp_path: Path) -> None:
    assert resumed_from(case, settings(case, tmp_path)) == (None, "", False)


@each
def test_a_job_resumes_from_the_newest_complete_checkpoint(case: Case, tmp_path: Path) -> None:
    given = settings(case, tmp_path)
    for step in (2, 3, 4):
        case.write(tmp_path / case.written_to, step)
    assert resumed_from(case, given) == (4, "4", True)
    for step in (9, 10):
        case.write(tmp_path / case.written_to, step)
    assert recipes.load(case.recipe).latest(given) == 10, "steps are numbers"


@pytest.mark.parametrize(("case", "part", "damage"), DAMAGES)
def test_before_an_incomplete_checkpoint_the_one_before_counts(
    case: Case, part: str, damage: Damage, tmp_path: Path
) -> None:
    for step in (2, 4):
        case.write(tmp_path / case.written_to, step)
    damage(tmp_path / case.written_to / part)
    newest, step_named, _ = resumed_from(case, settings(case, tmp_path))
    assert (newest, step_named) == (2, "2")
