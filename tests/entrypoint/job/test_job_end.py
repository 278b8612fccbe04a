"""Exit code 0 is the end of a run only with what a finished job of the recipe leaves."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job import job_end
from entrypoint.job.job_end import JobEnd
from entrypoint.job.log_progress import LogProgress
from entrypoint.job.recipes import base as recipes
from entrypoint.run.journal import Journal
from tests.support.verl_checkpoints import checkpoint

VERL = ("python3", "-m", "verl.trainer.main_ppo", "trainer.save_freq=5")
UNSAVED = ("python3", "-m", "verl.trainer.main_ppo", "trainer.save_freq=-1")
SEARCH = ("python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo")
SFT = ("trl", "sft", "--model_name_or_path", "m", "--dataset_name", "d")
PPO = ("python3", "-m", "openrlhf.cli.train_ppo_ray", "--ckpt.output_dir", "model")
RM = ("python3", "-m", "openrlhf.cli.train_rm")


def begun(recipe: str, job: Sequence[str], root: Path) -> Settings:
    return read_settings({"ROLLCALL_RECIPE": recipe, "ROLLCALL_RUN_DIR": str(root)}, job)


def end_of(settings: Settings, log: Sequence[str], resumed_at: int = 0) -> JobEnd:
    """What an attempt with this log tells at its end."""
    recipe = recipes.load(settings.recipe)
    journal = Journal(RunFiles(settings.run_dir).journal, "head")
    told = LogProgress(recipe, settings, journal, None)
    told.added = resumed_at if recipe.counts_anew else 0
    for line in log:
        told.read(line)
    return told.end(Progress(step=resumed_at) if resumed_at else None, frozenset())


def verl(steps: int, *around: str, first: int = 1, total: int = 10, batches: int = 5) -> list[str]:
    """The log of a trainer of verl that is asked for `total` steps."""
    begin = [
        f"(TaskRunner pid=7) Size of train dataloader: {batches}, Size of val dataloader: 1",
        f"(TaskRunner pid=7) Total training steps: {total}",
    ]
    lines = [f"(TaskRunner pid=7) step:{n} - actor/loss:0.1" for n in range(first, steps + 1)]
    return [*begin, *around[:1], *lines, *around[1:]]


FIRST = "(TaskRunner pid=7) Initial validation metrics: {'val/acc': 0.1}"
LAST = "(TaskRunner pid=7) 'Final validation metrics: None'"
CUT = "the log has neither its last step nor verl's last line"
NO_END = "its script has not run to its end"
STEPS_3 = [f"rollcall: step {n}/10" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("recipe", "job", "log", "lacking"),
    [
        ("verl", VERL, verl(3), CUT),
        ("verl", VERL, verl(3, FIRST), CUT),
        ("verl", VERL, verl(0, FIRST), CUT),
        ("verl", VERL, verl(10, FIRST, LAST), ""),
        ("verl", VERL, verl(10), ""),
        ("verl", UNSAVED, verl(9), ""),  # Ray may lose the lines of the last second
        ("verl", UNSAVED, verl(8), CUT),
        ("verl", (*VERL, "trainer.val_only=true"), verl(0, FIRST), ""),
        ("verl", (*VERL, "--config-name", "mine"), verl(0, FIRST), ""),
        ("verl", (*VERL, "trainer.total_epochs=2"), verl(10), ""),
        # the data ends first: 4 batches, 2 passes
        ("verl", (*VERL, "trainer.total_epochs=2"), verl(8, total=10, batches=4), ""),
        ("verl", (*VERL, "trainer.total_epochs=2"), verl(7, total=10, batches=4), CUT),
        ("verl", (*VERL, "trainer.total_training_steps=10"), ["step:3 - a:1"], CUT),
        ("verl", VERL, ["step:3 - a:1"], ""),  # nobody knows of how many
        ("search-r1", SEARCH, verl(9), ""),  # its copy of verl ends one step before the total
        ("search-r1", SEARCH, verl(4), CUT),
        ("search-r1", SEARCH, verl(9, FIRST, LAST), ""),
        ("search-r1", (*SEARCH, "+trainer.val_only=true"), verl(0, FIRST), ""),
        ("trl", SFT, STEPS_3, NO_END),
        ("trl", SFT, [], NO_END),
        ("trl", SFT, [*STEPS_3, "rollcall: in export 3"], NO_END),  # it died while it saved
        ("trl", SFT, [*STEPS_3, "rollcall: in export 3", "rollcall: finished"], ""),
        ("trl", ("train.py",), ["no training\r", "rollcall: finished"], ""),
        ("trl", SFT, ["100%|█████| 3/10 [rank0]: rollcall: finished"], ""),
        ("supervised", ("sft", "--pretrain", "m", "--dataset", "d"), STEPS_3, NO_END),
        ("supervised", ("sft", "--pretrain", "m", "--dataset", "d"), ["rollcall: finished"], ""),
        ("openrlhf", RM, ["rollcall: step 3"], NO_END),
        ("openrlhf", RM, ["rollcall: step 3", "rollcall: finished"], ""),
        ("command", ("true",), [], ""),
        ("torchrun", ("train.py",), [], ""),
        ("torchrun", ("train.py",), ["step 3/10"], ""),  # it does not say what its numbers are
    ],
)
def test_each_recipe_knows_its_end_from_its_log(
    recipe: str, job: Sequence[str], log: list[str], lacking: str, tmp_path: Path
) -> None:
    settings = begun(recipe, job, tmp_path)
    tells = recipes.load(recipe).lacking_at_end(settings)
    assert tells(end_of(settings, log)) == lacking


def test_a_checkpoint_of_the_last_step_is_an_end_whatever_the_log_has_lost(tmp_path: Path) -> None:
    settings = begun("verl", VERL, tmp_path)
    tells = recipes.load("verl").lacking_at_end(settings)
    assert tells(end_of(settings, verl(8))) == CUT
    checkpoint(tmp_path / "verl", 10)
    assert tells(end_of(settings, verl(8))) == ""
    assert tells(end_of(settings, verl(0, first=11), resumed_at=10)) == "", "resumed at its end"


def test_search_r1_counts_anew_after_a_resume(tmp_path: Path) -> None:
    settings = begun("search-r1", SEARCH, tmp_path)
    tells = recipes.load("search-r1").lacking_at_end(settings)
    assert tells(end_of(settings, verl(3, total=6), resumed_at=4)) == CUT
    assert tells(end_of(settings, verl(5, total=6), resumed_at=4)) == ""


def test_openrlhf_has_finished_if_it_has_written_its_model_in_this_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_end, "SIGHT_SECONDS", 0.0)
    settings, model = begun("openrlhf", PPO, tmp_path), tmp_path / "model"
    tells = recipes.load("openrlhf").lacking_at_end(settings)
    lacking = f"it has not written its model to {model}"
    assert tells(JobEnd(step=3)) == lacking
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert tells(JobEnd(step=3)) == ""
    again = recipes.load("openrlhf").lacking_at_end(settings)
    assert again(JobEnd(step=3)) == lacking, "the model of an earlier attempt"
    (model / "adapter_config.json").write_text("{}")
    assert again(JobEnd(step=3)) == ""


def test_the_builtin_trainer_has_finished_when_its_journal_says_that_the_model_is_written(
    tmp_path: Path,
) -> None:
    tells = recipes.load("builtin").lacking_at_end(begun("builtin", [], tmp_path))
    end = JobEnd(step=3, total_steps=10, events=frozenset({"resume", "step"}))
    assert job_end.sentence(end, tells(end)) == (
        "the job ended with exit code 0 after step 3 of 10, and it has not written its model: "
        "something in it has ended the process, as os._exit(0) and sys.exit(0) in a reward "
        "function or library do"
    )
    assert tells(replace(end, events=end.events | {"export"})) == ""


def test_another_python_may_have_a_rollcall_that_does_not_tell_the_end(tmp_path: Path) -> None:
    own = tmp_path / "python3"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    settings = begun("trl", (str(own), "train.py"), tmp_path)
    tells = recipes.load("trl").lacking_at_end(settings)
    assert tells(end_of(settings, STEPS_3)) == "steps are left"
    assert tells(end_of(settings, ["rollcall: step 10/10"])) == ""
    assert tells(end_of(settings, [])) == ""
    ours = begun("trl", (sys.executable, "train.py"), tmp_path)
    assert recipes.load("trl").lacking_at_end(ours)(end_of(ours, [])) == NO_END


def every(stride: int, last: int, total: int = 100, first: int = 0) -> list[str]:
    return [f"step {step}/{total}" for step in range(first or stride, last + 1, stride)]


@pytest.mark.parametrize("recipe", ["command", "torchrun"])
@pytest.mark.parametrize(
    ("log", "left"),
    [
        (every(1, 100), 0),
        (every(1, 99), 0),  # it counts from 0
        (every(10, 100, total=104), 0),
        (every(10, 90), 0),  # from 0, every tenth
        (every(1, 98), 2),
        (every(10, 80), 20),
        (every(1, 3), 97),
        (["step 3"], 0),  # of how many, nobody knows
        ([*every(1, 100), *every(1, 5, total=7)], 0),  # a bar of something else follows
        ([], 0),
        (every(1, 60)[50:], 40),  # resumed at 50
        ([f"(Member pid=7) {line}" for line in every(1, 98)], 0),  # Ray may have lost the rest
    ],
)
def test_a_program_that_tells_its_step_of_how_many_has_not_finished_before(
    recipe: str, log: list[str], left: int, tmp_path: Path
) -> None:
    given = {"ROLLCALL_RECIPE": recipe, "ROLLCALL_RUN_DIR": str(tmp_path)}
    pattern = r"step (?P<step>\d+)(?:/(?P<total_steps>\d+))?"
    settings = read_settings({**given, "ROLLCALL_STEP_PATTERN": pattern}, ("train.py",))
    lacking = recipes.load(recipe).lacking_at_end(settings)(end_of(settings, log))
    assert lacking.startswith(f"{left} steps are left by its own numbers") if left else not lacking
