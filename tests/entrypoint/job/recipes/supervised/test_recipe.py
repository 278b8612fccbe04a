"""The recipe `supervised`: stages as they are typed, and what the ranks run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contract.options import ConfigError
from contract.resources import NodeResources
from entrypoint.config.parsers import STAGES
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.recipes.base import ArgumentsError, FilesGoneError
from entrypoint.job.recipes.recognise import recipe_of
from entrypoint.job.recipes.supervised.recipe import RECIPE
from tests.support.begun import begun
from tests.support.hf_checkpoints import checkpoint, torch_file
from tests.support.recipe_commands import launched
from trainer.supervised import stages

SFT = ("sft", "--pretrain", "org/model", "--dataset", "rows.jsonl")
NODES = [NodeResources(name=f"n{number}", gpus=8) for number in range(3)]
words = partial(launched, RECIPE)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1", "completion": "2"}))
    monkeypatch.chdir(tmp_path)


def settings(*job: str, **environ: str) -> Settings:
    given = {"ROLLCALL_RECIPE": "supervised", "ROLLCALL_RUN_DIR": str(Path.cwd()), **environ}
    return read_settings(given, job)


def test_a_stage_runs_on_all_nodes_and_knows_the_run_directory() -> None:
    given = settings(*SFT)
    assert RECIPE.faults(given) == []
    added = ["--", "--run_dir", str(Path.cwd())]
    assert words(given) == ["-m", "trainer.supervised", *SFT, *added]
    assert tuple(stages.STAGES) == STAGES
    assert {recipe_of((stage, "--x")) for stage in STAGES} == {"supervised"}


def test_it_resumes_from_the_newest_complete_checkpoint() -> None:
    first = Path.cwd() / "elsewhere"
    checkpoint(first, 9)
    given = settings(*SFT, "--resume_from_checkpoint", str(first / "checkpoint-9"))
    saved = Path.cwd() / "checkpoints"
    assert RECIPE.latest(given) is None
    assert "checkpoint-9" in " ".join(words(given)), "the user's, at first"
    for step in (5, 10):
        checkpoint(saved, step)
    (saved / "checkpoint-10" / "model.safetensors").unlink()
    assert RECIPE.latest(given) == 5
    assert words(given, 5)[-2:] == ["--resume_from_checkpoint", str(saved / "checkpoint-5")]
    own = settings(*SFT, "--ckpt_path", "other")
    assert RECIPE.latest(own) is None


def test_its_checkpoints_are_known_while_the_rows_are_away() -> None:
    """The head asks beside a job that runs, and after one that has finished."""
    checkpoint(Path.cwd() / "own", 5)
    given = settings(*SFT, "--ckpt_path", "own")
    (Path.cwd() / "rows.jsonl").unlink()
    assert RECIPE.latest(given) == 5


def test_a_start_of_the_users_beside_a_newer_checkpoint_is_refused_until_the_run_has_begun() -> (
    None
):
    saved = Path.cwd() / "checkpoints"
    for step in (5, 10):
        checkpoint(saved, step)
    given = settings(*SFT, "--resume_from_checkpoint", str(saved / "checkpoint-5"))
    (fault,) = RECIPE.faults(given)
    assert f"{saved / 'checkpoint-5'} and {saved / 'checkpoint-10'} contradict each other" in fault
    assert "give another --ckpt_path" in fault
    begun(given)
    assert RECIPE.faults(given) == []


def test_the_plan_says_ranks_and_passes() -> None:
    layout = RECIPE.placed(settings(*SFT, "--train_batch_size", "96"), NODES).layout
    assert layout is not None
    assert layout["note"] == "24 ranks; a step is 96 samples: one pass of 4 on each rank"
    assert layout["groups"][0]["on"] == ["n0", "n1", "n2"]


def test_a_model_that_is_not_here_is_noted() -> None:
    (note,) = RECIPE.hub_notes(settings(*SFT))
    assert note.startswith("--pretrain org/model: not in the hub's cache here, and `plan` does not")
    own = Path.cwd() / "model"
    own.mkdir()
    (own / "config.json").write_text("{}")
    assert RECIPE.hub_notes(settings("sft", "--pretrain", str(own), *SFT[3:])) == []


def test_a_batch_that_the_ranks_cannot_split_does_not_start() -> None:
    (lacking,) = RECIPE.placed(settings(*SFT, "--train_batch_size", "32"), NODES).lacking
    assert "is not a multiple of 24 ranks" in lacking


def test_a_checkpoint_of_zero_needs_as_many_ranks() -> None:
    given = settings(*SFT, "--zero_stage", "2", "--train_batch_size", "96")
    saved = checkpoint(Path.cwd() / "checkpoints", 5)
    for rank in range(2):
        torch_file(saved / f"global_step5/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (saved / "latest").write_text("global_step5")
    (lacking,) = RECIPE.placed(given, NODES).lacking
    assert "was saved by 2 ranks of DeepSpeed's ZeRO, which cannot load it on 24" in lacking


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        ((), "ROLLCALL_RECIPE=supervised has nothing to train"),
        (("ppo",), "ppo is not a stage: give sft, rm or dpo"),
        (("sft", "--help"), "`rollcall sft --help` lists the flags"),
        ((*SFT, "--run_dir", "/elsewhere"), "which counts. Set ROLLCALL_RUN_DIR"),
        ((*SFT, "--learning_rate", "x"), "--learning_rate: must be a number"),
        ((*SFT, "--input_key", "question"), "rows.jsonl has no such column"),
        ((*SFT, "--input_key", "pormpt"), "did you mean prompt?"),
        (
            (*SFT, "--input_key", "prompt.text"),
            "--input_key: rows.jsonl:1: the key 'prompt.text' is",
        ),
        (("sft", "--pretrain", "/no", *SFT[3:]), "--pretrain: no model there"),
    ],
)
def test_what_cannot_run_is_a_fault_before_anything_starts(job: Any, fault: str) -> None:
    (found,) = RECIPE.faults(settings(*job))
    assert fault in found


def test_files_that_have_gone_are_waited_for_and_other_faults_are_not() -> None:
    given = settings(*SFT)
    (Path.cwd() / "rows.jsonl").unlink()
    with pytest.raises(FilesGoneError, match="no such file"):
        RECIPE.look_for_files(given)
    with pytest.raises(ArgumentsError, match="unknown flag"):
        RECIPE.look_for_files(settings("sft", "--x"))


def test_a_key_of_wandb_leaves_the_command_line() -> None:
    key = "0123456789" * 4
    given = settings(*SFT, "--use_wandb", key)
    assert key not in " ".join(words(given))
    assert given.wandb_api_key is not None


def test_settings_of_other_programs_are_refused() -> None:
    with pytest.raises(ConfigError, match="the recipe is supervised, which takes none"):
        settings(*SFT, ROLLCALL_RESUME_ARGS="--x")


def test_a_stage_may_come_from_the_environment() -> None:
    given = settings(ROLLCALL_JOB=" ".join(SFT))
    assert RECIPE.faults(given) == []
    assert given.job == SFT
