"""verl's supervised trainer: what is added to its command, and which checkpoint counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.job_end import JobEnd
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.recognise import recipe_of
from entrypoint.job.recipes.verl.recipe import RECIPE as VERL
from entrypoint.job.recipes.verl_sft import recipe as verl_sft
from entrypoint.job.recipes.verl_sft.recipe import RECIPE
from tests.support.hf_checkpoints import torch_file
from tests.support.interpreters import python_beside, python_with
from tests.support.recipe_commands import nodes
from tests.support.repository import ROOT

MODULE = "verl.trainer.sft_trainer"
GUIDE = f"""torchrun --standalone --nnodes=1 --nproc_per_node=8 -m {MODULE}
    data.train_files=/data/train.parquet data.messages_key=messages optim.lr=1e-4 engine=fsdp
    model.path=Qwen/Qwen3-8B trainer.default_local_dir=/out/sft trainer.total_epochs=2"""


def settings(run: Path, *job: str) -> Settings:
    return read_settings({"ROLLCALL_RECIPE": "verl-sft", "ROLLCALL_RUN_DIR": str(run)}, job)


def driven(given: Settings) -> list[str]:
    """Return the words of the launch on all nodes."""
    argv = RECIPE.command(given, RECIPE.latest(given)).argv
    return list(argv[argv.index("--") + 1 :])


def checkpoint(directory: Path, step: int, world: int = 2) -> Path:
    path = directory / f"global_step_{step}"
    for rank in range(world):
        torch_file(path / f"data_{rank}.pt")
        for kind in ("model", "optim", "extra_state"):
            torch_file(path / f"{kind}_world_size_{world}_rank_{rank}.pt")
    (directory / "latest_checkpointed_iteration.txt").write_text(str(step))
    return path


@pytest.mark.parametrize(
    "job",
    [
        GUIDE,
        f"uv run --frozen torchrun -m {MODULE} a.b=1",
        f"python -m torch.distributed.run --nproc_per_node 2 -m {MODULE} a.b=1",
        "torchrun --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer a.b=1",
        "torchrun /verl/verl/trainer/sft_trainer.py a.b=1",
        f"python3 -m {MODULE} a.b=1",
    ],
)
def test_the_command_is_recognised(job: str) -> None:
    assert recipe_of(job.split()) == "verl-sft"


def test_the_guides_command_gets_checkpoints_a_log_and_a_resume(tmp_path: Path) -> None:
    given = settings(tmp_path, *GUIDE.replace("/out/sft", f"{tmp_path}/sft").split())
    typed = list(given.job)
    added = ["trainer.save_freq=100", "trainer.logger=[console]"]
    assert driven(given) == [*typed, *added, "trainer.resume_mode=disable"]
    found = checkpoint(tmp_path / "sft", 200)
    assert RECIPE.latest(given) == 200
    assert driven(given)[len(typed) :] == [
        *added,
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={found}",
    ]
    assert "--standalone" in RECIPE.warnings(given)[0]


def test_a_checkpoint_counts_if_all_ranks_have_written_it_and_verl_names_it(
    tmp_path: Path,
) -> None:
    given = settings(tmp_path, "torchrun", "-m", MODULE, "a.b=1")
    directory = tmp_path / "verl-sft"
    checkpoint(directory, 100, world=4)
    newer = checkpoint(directory, 200, world=4)
    assert RECIPE.latest(given) == 200
    for name in ("optim_world_size_4_rank_3.pt", "data_2.pt", "data_0.pt"):
        content = (newer / name).read_bytes()
        (newer / name).unlink()
        assert RECIPE.latest(given) == 100, name
        (newer / name).write_bytes(content[:9])
        assert RECIPE.latest(given) == 100, name
        (newer / name).write_bytes(content)
    for rank in (2, 3):  # two ranks share each part of the data
        (newer / f"data_{rank}.pt").unlink()
    assert RECIPE.latest(given) == 200
    (directory / "latest_checkpointed_iteration.txt").write_text("199")
    assert RECIPE.latest(given) == 100


def test_fsdp_cannot_resume_with_another_number_of_ranks(tmp_path: Path) -> None:
    given = settings(tmp_path, "torchrun", "--nproc-per-node", "8", "-m", MODULE, "a.b=1")
    checkpoint(tmp_path / "verl-sft", 100, world=16)
    assert RECIPE.placed(given, nodes(8, 8)).lacking == ()
    (lacking,) = RECIPE.placed(given, nodes(8)).lacking
    assert "global_step_100 was saved by 16 ranks of FSDP, which verl cannot load on 8" in lacking


@pytest.mark.parametrize(
    ("line", "step", "loss"),
    [
        ("step:3 - train/loss:0.25 - train/grad_norm:1.5 - train/lr:1e-05", 3, "0.25"),
        ("Epoch 1/2: 10%|█ | 2/20 [00:03]step:3 - train/mfu:0.1 - train/loss:0.5", 3, "0.5"),
        ("(rank 3) step:12 - val/loss:0.75", 12, None),
        ("step:12 - critic/rewards/mean:1", None, None),
    ],
)  # fmt: skip
def test_the_lines_of_steps(tmp_path: Path, line: str, step: int | None, loss: str | None) -> None:
    found = RECIPE.step_pattern(settings(tmp_path, "torchrun", "-m", MODULE)).search(line)
    assert (found and int(found["step"]), found and found["loss"]) == (step, loss)


def test_an_end_without_verls_last_line_is_none(tmp_path: Path) -> None:
    given = settings(tmp_path, "torchrun", "-m", MODULE, "trainer.total_training_steps=20")
    lacking = RECIPE.lacking_at_end(given)
    early = JobEnd(step=7, told=True)
    assert "neither its last step nor verl's last line" in lacking(early)
    assert lacking(JobEnd(step=20, told=True)) == ""
    assert lacking(JobEnd(step=7, told=True, ended=True)) == ""


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("trainer.default_hdfs_dir=/x", "verl-sft cannot resume from there"),
        ("trainer.resume_mode=maybe", "give auto, disable or resume_path"),
        ("trainer.default_local_dir=a/${trainer.project_name}", "which Hydra resolves"),
    ],
)
def test_what_cannot_run_is_a_fault_before_anything_starts(
    tmp_path: Path, words: str, fault: str
) -> None:
    python_with("verl", tmp_path / "python")
    (tmp_path / "torchrun").touch()
    job = (f"{tmp_path}/torchrun", "-m", MODULE, words)
    found = RECIPE.faults(settings(tmp_path, *job))
    assert len(found) == 1
    assert fault in found[0]


def test_the_released_verl_has_the_module_and_no_older_one(tmp_path: Path) -> None:
    python_beside(ROOT / ".oracles", tmp_path / "python")
    launcher = f"{tmp_path}/torchrun"
    assert RECIPE.faults(settings(tmp_path, launcher, "-m", MODULE, "model.path=m")) == []
    (fault,) = RECIPE.faults(settings(tmp_path, launcher, "-m", "verl.trainer.fsdp_sft_trainer"))
    assert "has no verl.trainer.fsdp_sft_trainer: give a module that this release has" in fault


def test_an_image_without_verl_is_said_and_the_python_on_path_is_taken_if_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(tmp_path, "A=b", "torchrun", "-m", MODULE, "a.b=1")
    (fault,) = RECIPE.faults(given)
    assert fault.startswith(f"{sys.executable} has no verl: build the CUDA image with")
    monkeypatch.setattr(verl_sft, "interpreter_for", lambda *_: "/opt/verl/bin/python3")
    assert driven(given)[:2] == ["A=b", "/opt/verl/bin/torchrun"]


def test_the_recipe_of_verls_ppo_says_which_recipe_it_is(tmp_path: Path) -> None:
    environ = {"ROLLCALL_RECIPE": "verl", "ROLLCALL_RUN_DIR": str(tmp_path)}
    (fault,) = VERL.faults(read_settings(environ, GUIDE.split()))
    assert fault == f"{MODULE} runs on every node: give ROLLCALL_RECIPE=verl-sft, or none"


def test_the_trained_model_is_there_if_verl_was_asked_for_hf_model(tmp_path: Path) -> None:
    given = settings(tmp_path, "torchrun", "-m", MODULE, "engine=fsdp")
    assert "give checkpoint.save_contents=[model,optimizer,extra,hf_model]" in (
        RECIPE.without_model(given)
    )
    asked = settings(tmp_path, "torchrun", "-m", MODULE, "checkpoint.save_contents=[hf_model]")
    assert RECIPE.without_model(asked) == ""
    assert recipes.load("verl-sft").models(settings(tmp_path, *GUIDE.split())) == {
        "model.path": "Qwen/Qwen3-8B"
    }
