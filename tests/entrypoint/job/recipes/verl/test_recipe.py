"""The recipe `verl`: the guide's command as it is typed, and what the driver gets."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import save

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.base import PlacedJob
from entrypoint.job.recipes.verl.command_line import parse
from entrypoint.job.recipes.verl.recipe import RECIPE
from entrypoint.run.failure_classes import FailureClass
from tests.support.begun import begun
from tests.support.interpreters import python_with
from tests.support.recipe_commands import nodes
from tests.support.repository import ROOT
from tests.support.verl_checkpoints import checkpoint

GUIDE = (ROOT / "tests/data/verl-multinode.txt").read_text().replace("\\\n", " ")
"""Of verl's page on several nodes, with its `tee` in the middle."""
PYTHON = "ray_kwargs.ray_init.runtime_env.py_executable"
CONFIG = ROOT / ".oracles/verl/trainer/config/_generated_ppo_trainer.yaml"
"""The configuration of the released verl, with all defaults."""


def settings(run: Path, *job: str, **environ: str) -> Settings:
    given = {"ROLLCALL_RECIPE": "verl", "ROLLCALL_RUN_DIR": str(run), **environ}
    return read_settings(given, job)


def overrides(given: Settings) -> dict[str, str]:
    """What the driver gets."""
    argv = RECIPE.command(given, RECIPE.latest(given)).argv
    assert argv[1:3] == ("-m", "verl.trainer.main_ppo")
    return dict(word.split("=", 1) for word in argv[3:])


def test_the_guides_command_is_accepted_as_it_is_typed(tmp_path: Path) -> None:
    given = settings(tmp_path, *shlex.split(GUIDE))
    typed = GUIDE.partition("main_ppo")[2].partition("2>&1")[0]
    expected = [*typed.split(), "trainer.logger=[console]", "trainer.resume_mode=disable"]
    command = RECIPE.command(given, None)
    assert command.argv == (sys.executable, "-m", "verl.trainer.main_ppo", *expected)
    found = recipes.warnings(RECIPE, PlacedJob(settings=given))
    assert "tee verl_demo.log trainer.resume_mode=disable: no effect" in found[0]
    placed = RECIPE.placed(given, nodes(8, 8))
    assert (placed.settings, placed.lacking) == (given, ())
    (lacking,) = RECIPE.placed(given, nodes(8, 4)).lacking
    assert lacking == "verl wants 8 GPUs on each of 2 nodes; the nodes offer 8, 4"
    assert RECIPE.less_placement.startswith("Set trainer.nnodes and trainer.n_gpus_per_node to ")
    (idle,) = RECIPE.placed(given, nodes(8, 8, 8)).warnings
    assert idle.startswith("the job uses 16 of 24 GPUs (trainer.nnodes=2 × trainer.n_gpus_per")
    assert RECIPE.placed(given, nodes(8, 8)).warnings == ()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python3 -m verl.trainer.main_ppo", None),
        (f"{sys.executable} -m verl.trainer.main_ppo", None),
        ("/bin/python3 -m verl.trainer.main_ppo", "/bin/python3"),
        (f"/bin/python3 -m verl.trainer.main_ppo {PYTHON}=/a/python", "/a/python"),
    ],
)
def test_workers_run_in_the_environment_of_the_named_python(
    tmp_path: Path, words: str, expected: str | None
) -> None:
    assert overrides(settings(tmp_path, *words.split())).get(PYTHON) == expected


def test_each_override_is_one_that_the_released_verl_has(tmp_path: Path) -> None:
    row: Mapping[str, Any] = yaml.safe_load(CONFIG.read_text())
    checkpoint(tmp_path / "verl", 7)
    short = RECIPE.placed(settings(tmp_path, "data.train_batch_size=8"), nodes(2)).settings
    given = settings(tmp_path, *shlex.split(GUIDE))
    other = settings(tmp_path, "/bin/python3", "-m", "verl.trainer.main_ppo")
    for key in {**overrides(given), **overrides(short), **overrides(other)}:
        section: Any = row
        for name in key.split("."):
            assert name in section, key
            section = section[name]


def test_what_is_left_out_comes_from_the_roll_and_the_run_directory(tmp_path: Path) -> None:
    given = settings(tmp_path, "data.train_batch_size=8", WANDB_API_KEY="k" * 40)
    assert overrides(RECIPE.placed(given, nodes(8, 0, 4, 8)).settings) == {
        "data.train_batch_size": "8",
        "trainer.nnodes": "3",
        "trainer.n_gpus_per_node": "4",
        "trainer.default_local_dir": str(tmp_path / "verl"),
        "trainer.save_freq": "20",
        "trainer.resume_mode": "disable",
    }


@pytest.mark.parametrize(
    ("job", "gpus", "layout"),
    [
        ("trainer.nnodes=2", (8, 8, 4), ("2", "8")),
        ("trainer.n_gpus_per_node=8", (8, 8, 4), ("2", "8")),
        ("trainer.nnodes=1 trainer.n_gpus_per_node=2", (8, 8), ("1", "2")),
    ],
)
def test_the_users_part_of_the_layout_stays(
    tmp_path: Path, job: str, gpus: tuple[int, ...], layout: tuple[str, str]
) -> None:
    found = overrides(RECIPE.placed(settings(tmp_path, *job.split()), nodes(*gpus)).settings)
    assert (found["trainer.nnodes"], found["trainer.n_gpus_per_node"]) == layout


def test_the_layout_does_not_lose_the_program_and_its_variables(tmp_path: Path) -> None:
    job = ("HYDRA_FULL_ERROR=1", "python3", "-u", "-m", "verl.trainer.main_ppo", "a.b=1")
    placed = RECIPE.placed(settings(tmp_path, *job), nodes(2)).settings
    command = RECIPE.command(placed, None)
    assert command.argv[1:5] == ("-u", "-m", "verl.trainer.main_ppo", "a.b=1")
    assert command.env["HYDRA_FULL_ERROR"] == "1"


def test_a_directory_below_the_home_directory_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shell reads the override; verl itself would take `~` for a name."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    given = settings(tmp_path, "trainer.default_local_dir=~/out")
    assert overrides(given)["trainer.default_local_dir"] == f"{tmp_path}/home/out"
    checkpoint(tmp_path / "home/out", 5)
    assert RECIPE.latest(given) == 5
    assert not any("relative" in warning for warning in RECIPE.warnings(given))


def test_a_checkpoint_to_begin_from_may_lie_below_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    named = ["trainer.resume_mode=resume_path", "trainer.resume_from_path=~/out/global_step_5"]
    found = overrides(settings(tmp_path, *named))
    assert found["trainer.resume_from_path"] == f"{tmp_path}/home/out/global_step_5"
    checkpoint(tmp_path / "home/out", 5)
    own = settings(tmp_path, *named, "trainer.default_local_dir=~/out", **VERL)
    assert RECIPE.faults(own) == [], "the newest one there is the named one"


def test_the_trained_model_is_there_if_verl_was_asked_for_hf_model(tmp_path: Path) -> None:
    given = settings(tmp_path, "data.train_batch_size=8")
    assert RECIPE.exported(given) is None
    model = checkpoint(tmp_path / "verl", 7) / "actor/huggingface"
    model.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (model / name).write_text("{}")
    assert RECIPE.exported(given) is None, "settings and tokenizer, which verl always writes"
    (model / "model.safetensors").write_bytes(save({}))
    assert RECIPE.exported(given) == model


CONTENTS = "actor_rollout_ref.actor.checkpoint.save_contents"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "data.train_batch_size=8",
            f"no hf_model: give {CONTENTS}=[model,optimizer,extra,hf_model]",
        ),
        (f"{CONTENTS}=[model]", "its checkpoints have no hf_model"),
        (
            f"{CONTENTS}=[hf_model] trainer.save_freq=-1",
            "trainer.save_freq=-1 writes no checkpoint",
        ),
        ("actor_rollout_ref.actor.strategy=fsdp2", "its checkpoints have no hf_model"),
        (f"{CONTENTS}=['model','hf_model']", ""),
        ("actor_rollout_ref.actor.checkpoint.contents=[hf_model]", ""),
        (f"{CONTENTS}=${{x}}", ""),
        ("model_engine=megatron", ""),
        ("actor_rollout_ref.actor.strategy=megatron", ""),
        ("actor@actor_rollout_ref.actor=megatron_actor", ""),
        ("--config-name=ppo_megatron_trainer a.b=1", ""),
        ("python3 train.py a.b=1", ""),
    ],
)
def test_whether_a_run_leaves_a_model_is_known_from_its_overrides(
    tmp_path: Path, words: str, said: str
) -> None:
    given = RECIPE.without_model(settings(tmp_path, *words.split()))
    assert (said in given) if said else not given


def test_it_resumes_from_the_newest_complete_checkpoint_whatever_verl_would_take(
    tmp_path: Path,
) -> None:
    given = settings(tmp_path, "trainer.default_local_dir=out", "trainer.resume_mode=disable")
    assert overrides(given)["trainer.resume_mode"] == "disable"
    for step in (5, 10):
        checkpoint(tmp_path / "out", step)
    (tmp_path / "out/global_step_10/data.pt").unlink()
    assert RECIPE.latest(given) == 5
    found = overrides(given)
    assert found["trainer.resume_mode"] == "resume_path"
    assert found["trainer.resume_from_path"] == str(tmp_path / "out/global_step_5")
    assert found["trainer.default_local_dir"] == str(tmp_path / "out")
    warnings = "\n".join(RECIPE.warnings(given))
    assert "trainer.default_local_dir=out is relative: checkpoints lie in" in warnings
    assert "trainer.resume_mode=disable holds until the run has a checkpoint" in warnings


@pytest.mark.parametrize(
    "words",
    [
        "trainer.resume_mode=disable",
        "trainer.resume_mode=resume_path trainer.resume_from_path=/a/global_step_3",
    ],
)
def test_a_start_of_the_users_beside_a_checkpoint_is_refused_until_the_run_has_begun(
    tmp_path: Path, words: str
) -> None:
    given = settings(tmp_path, *words.split(), **VERL)
    assert RECIPE.faults(given) == []
    saved = checkpoint(tmp_path / "verl", 5)
    (fault,) = RECIPE.faults(given)
    assert f"{words} and {saved} contradict each other" in fault
    assert "Leave trainer.resume_mode=" in fault
    begun(given)
    assert RECIPE.faults(given) == [], "the checkpoint is the run's own"


def test_hydra_gets_a_run_directory_with_any_characters(tmp_path: Path) -> None:
    run = tmp_path / "lr=1e-6 it's (2)"
    checkpoint(run / "verl", 5)
    found = overrides(settings(run, "a.b=1"))
    path = str(run).replace("'", r"\'")
    assert found["trainer.default_local_dir"] == f"'{path}/verl'"
    assert found["trainer.resume_from_path"] == f"'{path}/verl/global_step_5'"


def test_options_of_python_stay_before_the_module() -> None:
    job = ("python3", "-W", "ignore", "-u", "-m", "verl.trainer.main_ppo", "a.b=1")
    found = parse(job)
    assert (found.program, found.overrides) == (job[1:6], ("a.b=1",))


@pytest.mark.parametrize("path", ["out/${trainer.project_name}", "'/ckpt/a b'", "/ckpt/a,b"])
def test_a_directory_that_only_hydra_could_resolve_is_refused(tmp_path: Path, path: str) -> None:
    faults = "".join(RECIPE.faults(settings(tmp_path, f"trainer.default_local_dir={path}")))
    assert f"trainer.default_local_dir={path} has " in faults
    assert "give the path itself, or leave it out" in faults


def test_without_a_complete_checkpoint_verl_does_not_look_for_one(tmp_path: Path) -> None:
    checkpoint(tmp_path / "verl", 5, 2, "critic")
    assert overrides(settings(tmp_path, "a.b=1"))["trainer.resume_mode"] == "disable"


def test_fsdp_cannot_resume_with_another_number_of_ranks(tmp_path: Path) -> None:
    checkpoint(tmp_path / "verl", 6, 4)
    given = settings(tmp_path, "data.train_batch_size=8")
    assert RECIPE.placed(given, nodes(2, 2)).lacking == ()
    (lacking,) = RECIPE.placed(given, nodes(2)).lacking
    assert "global_step_6 was saved by 4 ranks of FSDP, which verl cannot load on 2" in lacking


def test_a_console_is_added_to_the_users_loggers(tmp_path: Path) -> None:
    given = settings(tmp_path, "trainer.logger=['wandb']")
    assert overrides(given)["trainer.logger"] == "[console,'wandb']"
    assert any("`console` is added" in warning for warning in RECIPE.warnings(given))
    own = settings(tmp_path, "trainer.logger=['console','wandb']", "trainer.save_freq=-1")
    assert overrides(own)["trainer.logger"] == "['console','wandb']"
    assert overrides(own)["trainer.save_freq"] == "-1"
    assert RECIPE.warnings(own) == (
        "trainer.save_freq=-1: without checkpoints, each attempt begins at step 1",
    )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            "actor_rollout_ref.actor.checkpoint.async_save=True",
            "async_save=True: the newest checkpoint may be half written and does not count",
        ),
        (
            "trainer.max_actor_ckpt_to_keep=1 trainer.max_critic_ckpt_to_keep=1",
            "trainer.max_actor_ckpt_to_keep=1, trainer.max_critic_ckpt_to_keep=1: verl deletes the",
        ),
        ("trainer.max_critic_ckpt_to_keep=1", "a crash meanwhile leaves none: give"),
        ("trainer.remove_previous_ckpt_in_save=true", "remove_previous_ckpt_in_save=true: verl"),
        ("trainer.max_actor_ckpt_to_keep=2 trainer.max_critic_ckpt_to_keep=2", ""),
        ("critic.checkpoint.async_save=False trainer.max_actor_ckpt_to_keep=null", ""),
    ],
)
def test_a_setting_by_which_a_crash_may_find_no_checkpoint_is_warned_of(
    tmp_path: Path, job: str, said: str
) -> None:
    warnings = RECIPE.warnings(settings(tmp_path, *job.split()))
    assert len(warnings) == bool(said)
    assert said in "".join(warnings)


VERL = {"ROLLCALL_RUNTIME_ENV": '{"pip": ["verl"]}'}


@pytest.mark.parametrize(
    ("job", "environ", "fault"),
    [
        ("", {}, "ROLLCALL_RECIPE=verl has nothing to train"),
        ("/none/python -m verl.trainer.main_ppo", {}, "/none/python is not there"),
        (
            "bash run_qwen.sh",
            VERL,
            "bash is not a key=value, and no verl reads it: give verl's own",
        ),
        ("trainer.nnodes=2 --config-name ppo a.b", VERL, "a.b is not a key=value"),
        ("data.train_files=/data/python3 a.b", VERL, "a.b is not a key=value"),
        (
            f"{sys.executable} -m x trainer.resume_mode=resume_path",
            {},
            "trainer.resume_mode=resume_path needs trainer.resume_from_path=…/global_step_N",
        ),
        (f"{sys.executable} -m x trainer.resume_mode=yes", {}, "give auto, disable or resume_path"),
        (f"{sys.executable} -m x trainer.default_hdfs_dir=hdfs://a", {}, "cannot resume from"),
        (f"{sys.executable} -m x ray_kwargs.ray_init.num_cpus=16", {}, "Ray refuses it"),
        (f"{sys.executable} -m x trainer.nnodes=0", {}, "is not a number of 1 or more"),
        (
            f"{sys.executable} -m x '{PYTHON}=no-such-uv run --frozen --extra vllm'",
            {},
            "this image has no program no-such-uv, so that no worker could start: leave it out",
        ),
        (sys.executable, {}, "has nothing to run: give a module behind it, such as -m verl."),
        (f"{sys.executable} -m x", {"ROLLCALL_CHECKPOINTS": "c-{step}"}, "leave it out"),
    ],
)
def test_what_cannot_run_is_a_fault_before_anything_starts(
    tmp_path: Path, job: str, environ: dict[str, str], fault: str
) -> None:
    (found,) = RECIPE.faults(settings(tmp_path, *shlex.split(job), **environ))
    assert fault in found


@pytest.mark.parametrize("typed", ["python", "python3", ""])
def test_the_python_on_the_path_runs_driver_and_workers_if_only_it_has_verl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    python = str(python_with("verl", tmp_path / (typed or "python3")))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = (typed, "-m", "verl.trainer.main_ppo") if typed else ()
    given = settings(tmp_path, *program, "a.b=1")
    assert RECIPE.faults(given) == []
    placed = RECIPE.placed(given, nodes(8)).settings
    assert RECIPE.command(placed, None).argv[0] == python
    assert overrides(placed)[PYTHON] == python


def test_a_python_of_the_runtime_environment_runs_the_workers(tmp_path: Path) -> None:
    job = ("/opt/verl/bin/python", "-m", "verl.trainer.main_ppo", "a.b=1")
    named = settings(tmp_path, *job, ROLLCALL_RUNTIME_ENV='{"py_executable": "/own"}')
    assert RECIPE.command(named, None).runtime_env["py_executable"] == "/own"
    assert PYTHON not in overrides(named)


def test_an_image_without_verl_is_said(tmp_path: Path) -> None:
    (fault,) = RECIPE.faults(settings(tmp_path, "a.b=1"))
    assert "neither Rollcall's Python nor the one on PATH has verl" in fault
    installed = settings(tmp_path, "a.b=1", **VERL)
    assert RECIPE.faults(installed) == []


@pytest.mark.parametrize(
    ("line", "step", "reward"),
    [
        ("step:7 - global_seqlen/min:1 - critic/rewards/mean:0.12 - timing_s/step:3", 7, "0.12"),
        ("step:8 - critic/rewards/mean:np.float64(-1e-05) - x:1", 8, "-1e-05"),
        ("step:10 - val-core/openai/gsm8k/reward/mean@1:0.5", 10, None),
    ],
)
def test_the_lines_of_steps(tmp_path: Path, line: str, step: int, reward: str | None) -> None:
    match = RECIPE.step_pattern(settings(tmp_path, "a.b=1")).search(line)
    assert match
    assert (int(match["step"]), match["reward"]) == (step, reward)


def test_errors_of_its_configuration_are_usage() -> None:
    line = "ValueError: Total available GPUs 4 is less than total desired GPUs 16"
    assert RECIPE.failure_in(line) is FailureClass.USAGE
    assert RECIPE.failure_in("ValueError: x") is None
