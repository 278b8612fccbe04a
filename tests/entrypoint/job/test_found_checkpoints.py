"""The checkpoints of any program, by the pattern of their path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job import found_checkpoints
from entrypoint.job.found_checkpoints import FoundCheckpoint
from entrypoint.job.recipes.base import FilesGoneError
from entrypoint.job.recipes.command.recipe import RECIPE
from tests.support.hf_checkpoints import checkpoint, torch_file


def settings(run: Path, checkpoints: str, *job: str, resume: str = "") -> Settings:
    environ = {
        "ROLLCALL_RECIPE": "command",
        "ROLLCALL_RUN_DIR": str(run),
        "ROLLCALL_CHECKPOINTS": checkpoints,
        "ROLLCALL_RESUME_ARGS": resume,
    }
    return read_settings(environ, job or ("true",))


def file(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def newest(run: Path, pattern: str) -> tuple[int, str] | None:
    found = found_checkpoints.newest(settings(run, pattern))
    return None if found is None else (found.step, str(found.path.relative_to(run)))


def test_the_newest_is_that_of_the_highest_step_and_not_of_the_last_name(tmp_path: Path) -> None:
    pattern = "out/checkpoint-{step}"
    assert newest(tmp_path, pattern) is None
    for step in (9, 100, 20):
        file(tmp_path / f"out/checkpoint-{step}/model.bin")
    file(tmp_path / "out/checkpoint-best/model.bin")
    file(tmp_path / "out/old-checkpoint-900/model.bin")
    assert newest(tmp_path, pattern) == (100, "out/checkpoint-100")
    assert newest(tmp_path, str(tmp_path / pattern)) == (100, "out/checkpoint-100")


def test_a_checkpoint_without_the_file_that_is_written_last_is_half_written(tmp_path: Path) -> None:
    for step in (10, 20):
        file(tmp_path / f"checkpoint-{step}/model.bin")
    file(tmp_path / "checkpoint-10/trainer_state.json")
    pattern = "checkpoint-{step}/trainer_state.json"
    assert newest(tmp_path, pattern) == (10, "checkpoint-10")
    assert newest(tmp_path, "checkpoint-{step}") == (20, "checkpoint-20")


def test_a_bracket_in_a_path_stands_for_itself(tmp_path: Path) -> None:
    run = tmp_path / "run[1]"
    file(run / "out/checkpoint-3/a[b]")
    assert newest(run, "out/checkpoint-{step}/a[b]") == (3, "out/checkpoint-3")


def test_checkpoints_may_lie_in_the_root_directory(tmp_path: Path) -> None:
    """As in a volume of a container; /lib64 stands for one where it is there."""
    assert found_checkpoints.newest(settings(tmp_path, "/no-such-checkpoint-{step}")) is None
    found = found_checkpoints.newest(settings(tmp_path, "/lib{step}/*"))
    lib64 = FoundCheckpoint(64, Path("/lib64"))
    assert found == (lib64 if lib64.path.is_dir() else None)


def test_an_empty_checkpoint_is_none(tmp_path: Path) -> None:
    (tmp_path / "step_7").mkdir()
    file(tmp_path / "step_5.pt")
    file(tmp_path / "step_6.pt", "")
    assert newest(tmp_path, "step_{step}") is None
    assert newest(tmp_path, "step_{step}.pt") == (5, "step_5.pt")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def test_without_a_file_that_is_written_last_the_formats_tell_what_is_half_written(
    tmp_path: Path,
) -> None:
    """As many programs write: torch.save, safetensors, DeepSpeed, torch.distributed.checkpoint."""
    pattern = "checkpoint-{step}"
    checkpoint(tmp_path, 10)
    damages: tuple[Callable[[Path], object], ...] = (
        lambda path: cut(path / "model.safetensors"),
        lambda path: cut(path / "optimizer.pt"),
        lambda path: (path / "optimizer.pt").write_bytes(b""),
        lambda path: file(path / "pytorch_model_0" / "__0_0.distcp"),
        lambda path: file(path / "__0_0.distcp"),
        lambda path: file(path / "zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        lambda path: file(path / "model.safetensors.index.json", '{"weight_map": {"a": "b"}}'),
        lambda path: file(path / "model.safetensors.index.json", "{"),
    )
    for step, damage in enumerate(damages, 11):
        damage(checkpoint(tmp_path, step))
        assert newest(tmp_path, pattern) == (10, "checkpoint-10"), step
    file(tmp_path / "checkpoint-20/weights.pt", "a pickle of an old torch")
    file(tmp_path / "checkpoint-20/empty.log", "")
    assert newest(tmp_path, pattern) == (20, "checkpoint-20")
    torch_file(tmp_path / "step_3.ckpt")
    torch_file(tmp_path / "step_4.ckpt")
    cut(tmp_path / "step_4.ckpt")
    assert newest(tmp_path, "step_{step}.ckpt") == (3, "step_3.ckpt")


def test_stars_stand_for_names_that_are_not_known(tmp_path: Path) -> None:
    file(tmp_path / "runs/2026-11-24/epoch=1-step=40.ckpt")
    file(tmp_path / "runs/2026-11-25/epoch=2-step=80.ckpt/rank_0.pt")
    pattern = "runs/*/epoch=*-step={step}.ckpt"
    assert newest(tmp_path, pattern) == (80, "runs/2026-11-25/epoch=2-step=80.ckpt")
    assert newest(tmp_path, f"{pattern}/rank_*.pt") == (
        80,
        "runs/2026-11-25/epoch=2-step=80.ckpt",
    )


def test_a_job_that_resumes_gets_the_words_for_it(tmp_path: Path) -> None:
    file(tmp_path / "checkpoint-40/model.bin")
    resume = "--resume_from_checkpoint {checkpoint} trainer.step={step}"
    of = settings(tmp_path, "checkpoint-{step}", "python", "train.py", resume=resume)
    assert RECIPE.latest(of) == 40
    assert RECIPE.command(of, None).argv == ("python", "train.py")
    command = RECIPE.command(of, 40)
    path = str(tmp_path / "checkpoint-40")
    assert command.argv[2:] == ("--resume_from_checkpoint", path, "trainer.step=40")
    assert command.env["ROLLCALL_RESUME_FROM"] == "40"


def test_the_job_resumes_from_the_step_that_was_planned_and_never_from_an_empty_path(
    tmp_path: Path,
) -> None:
    file(tmp_path / "checkpoint-40/model.bin")
    of = settings(tmp_path, "checkpoint-{step}", "true", resume="--resume {checkpoint}")
    file(tmp_path / "checkpoint-60/model.bin")  # a late write of the attempt before
    assert RECIPE.command(of, 40).argv[1:] == ("--resume", str(tmp_path / "checkpoint-40"))
    (tmp_path / "checkpoint-40/model.bin").unlink()
    with pytest.raises(FilesGoneError, match="the checkpoint of step 40 is gone: checkpoint-"):
        RECIPE.command(of, 40)


@pytest.mark.parametrize(
    ("job", "resume", "named"),
    [
        ("--resume_from_checkpoint out", "--resume-from-checkpoint {checkpoint}", "--resume_from"),
        ("--resume=out", "--resume {checkpoint}", "--resume"),
        (
            "+trainer.resume_from_path=x",
            "trainer.resume_from_path={checkpoint}",
            "resume_from_path",
        ),
    ],
)
def test_an_option_of_the_job_and_of_its_resume_is_a_fault_that_names_both(
    tmp_path: Path, job: str, resume: str, named: str
) -> None:
    words = ("true", *job.split())
    (fault,) = RECIPE.faults(settings(tmp_path, "c-{step}", *words, resume=resume))
    assert fault.count(named[2:]) >= 1
    assert "ROLLCALL_RESUME_ARGS adds" in fault


def test_other_options_are_no_contradiction(tmp_path: Path) -> None:
    job = ("true", "--resume_every", "5", "--lr=1e-5")
    assert not RECIPE.faults(settings(tmp_path, "c-{step}", *job, resume="--resume {checkpoint}"))
