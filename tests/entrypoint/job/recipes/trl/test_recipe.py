"""The recipe `trl`: TRL's commands as they are typed, and what the ranks run."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from transformers import TrainingArguments

from contract.files.child_variables import RESUME_CHECKPOINT
from contract.launch.launcher_flags import parse, telling_steps
from contract.resources import NodeResources
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import interpreters
from entrypoint.job.recipes.recognise import recipe_of, recognised
from entrypoint.job.recipes.trl import recipe as trl
from entrypoint.job.recipes.trl.recipe import RECIPE
from entrypoint.run.failure_classes import FailureClass
from tests.support.begun import begun
from tests.support.hf_checkpoints import checkpoint, torch_file
from tests.support.recipe_commands import launched

SFT = ("trl", "sft", "--model_name_or_path", "m", "--dataset_name", "d")
words = partial(launched, RECIPE)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


def settings(*job: str, **environ: str) -> Settings:
    given = {"ROLLCALL_RECIPE": "trl", "ROLLCALL_RUN_DIR": str(Path.cwd()), **environ}
    return read_settings(given, job)


def test_a_command_of_trl_runs_on_all_nodes_and_exports_to_the_run_directory() -> None:
    output = ["--output_dir", str(Path.cwd() / "hf")]
    module = ["-m", "trl.scripts.sft", *SFT[2:]]
    assert words(settings(*SFT)) == [*module, *output]
    assert words(settings(*SFT[1:])) == [*module, *output]
    assert words(settings(*SFT, "--output_dir=out")) == [*module, "--output_dir=out"]
    assert recipe_of(SFT) == "trl"


@pytest.mark.parametrize(
    "launcher", ["torchrun --nproc_per_node 2", "accelerate launch --num_processes 2"]
)
def test_trl_behind_a_launcher_is_its_script_as_a_module(launcher: str) -> None:
    given = settings(*launcher.split(), "/x/bin/trl", *SFT[1:])
    as_module = settings(*launcher.split(), "-m", "trl.scripts.sft", *SFT[2:])
    assert words(given) == words(as_module)
    assert RECIPE.faults(given) == RECIPE.faults(as_module)
    assert any(
        "--datset_name" in one
        for one in RECIPE.faults(
            settings(*launcher.split(), "/x/bin/trl", *SFT[1:], "--datset_name", "d")
        )
    )


def test_variables_before_a_command_of_trl_stay_before_it() -> None:
    assigned = ("NCCL_DEBUG=INFO", "A=b c")
    given = settings(*assigned, *SFT)
    assert RECIPE.faults(given) == []
    assert words(given)[: len(SFT) + 2] == [*assigned, "-m", "trl.scripts.sft", *SFT[2:]]
    assert recipe_of((*assigned, *SFT)) == "trl"
    assert recipe_of((*assigned, "true")) == "command"
    (fault,) = RECIPE.faults(settings("A=b", "trl", "ppo"))
    assert "trl has no training script ppo" in fault


def test_a_script_runs_with_the_python_that_is_named_if_that_one_can_tell_steps() -> None:
    own = settings(sys.executable, "-u", "train.py", "--output_dir", "out")
    assert RECIPE.faults(own) == []
    assert words(own)[:3] == [sys.executable, "-u", "train.py"]
    launch = telling_steps(parse(own.job))
    assert launch.program[:4] == (sys.executable, "-u", "-m", "trainer.cluster.launch.with_steps")
    bare = Path("bin/python3")
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    (fault,) = RECIPE.faults(settings(f"{Path.cwd()}/bin/python3", "train.py"))
    assert fault.startswith(f"{Path.cwd()}/bin/python3 has no Rollcall, which tells the steps")
    assert f"give python3, which is {sys.executable}" in fault
    (fault,) = RECIPE.faults(settings("/none/python3", "train.py"))
    assert fault.startswith(
        "/none/python3 is not there: give the path of a Python or of a launcher"
    )
    (fault,) = RECIPE.faults(settings("/none/accelerate", "launch", "train.py"))
    assert fault.startswith("/none/python is not there: give the path of a Python or of a")
    (fault,) = RECIPE.faults(settings(f"{bare.parent}/accelerate", "launch", "train.py"))
    assert fault.startswith("bin/python is not there")


@pytest.mark.parametrize(
    "job",
    [
        ("accelerate", "launch", "--num_processes", "2", "train.py"),
        (*SFT, "--accelerate_config", "zero3"),
        ("torchrun", "train.py"),
    ],
)
def test_what_a_launcher_starts_with_rollcalls_python_tells_steps(job: tuple[str, ...]) -> None:
    assert RECIPE.faults(settings(*job)) == []


def other_trl(program: str) -> str:
    """Make an environment's `trl`, and beside it a Python that runs this program."""
    python = Path.cwd() / "env/bin/python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    python.chmod(0o755)
    return str(python.with_name("trl"))


def test_trl_of_another_environment_runs_with_the_python_beside_it() -> None:
    typed = other_trl(sys.executable)
    given = settings("A=b", typed, *SFT[1:])
    assert RECIPE.faults(given) == []
    python = str(Path(typed).with_name("python"))
    assert words(given)[: len(SFT) + 2] == ["A=b", python, "-m", "trl.scripts.sft", *SFT[2:]]
    (fault,) = RECIPE.faults(settings(typed, "ppo"))
    assert "trl has no training script ppo" in fault
    zero3 = settings(typed, *SFT[1:], "--accelerate_config", "zero3")
    assert RECIPE.faults(zero3) == []
    assert words(zero3)[:3] == [python, "-m", "accelerate.commands.launch"]
    assert parse(words(zero3)).python == python
    own = str(Path(sys.executable).with_name("trl"))
    assert words(settings(own, *SFT[1:])) == words(settings(*SFT))


def test_trl_of_an_environment_that_cannot_run_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (fault,) = RECIPE.faults(settings("/none/bin/trl", *SFT[1:]))
    assert fault.startswith("/none/bin/python is not there: give the `trl` of an environment")
    typed = other_trl(f"{sys.executable} -S -I")
    (fault,) = RECIPE.faults(settings(typed, *SFT[1:]))
    assert fault.startswith(f"{Path(typed).with_name('python')} has no TRL: give the `trl` of an")
    monkeypatch.setattr(interpreters, "PROBE_SECONDS", 0.5)
    interpreters._answer.cache_clear()
    (fault,) = RECIPE.faults(settings(other_trl("sleep 60 #"), *SFT[1:]))
    assert "did not end within 0.5 s, asked whether it has TRL: try again" in fault


def test_flags_of_accelerate_among_those_of_trl_go_to_its_launcher() -> None:
    job = [*SFT[:2], "--accelerate_config", "zero3", "--num_processes=4", *SFT[2:]]
    launcher = words(settings(*job))[: -len(SFT)]
    assert launcher[:3] == ["accelerate", "launch", "--config_file"]
    assert Path(launcher[3]).name == "zero3.yaml"
    assert Path(launcher[3]).is_file(), "TRL's own configuration"
    assert launcher[4:] == ["--num_processes=4", "-m", "trl.scripts.sft"]


def test_flags_of_accelerate_in_the_file_of_arguments_go_to_its_launcher() -> None:
    """TRL's command takes them from there, too; its script leaves them out."""
    Path("c.yaml").write_text("accelerate_config: zero3\nnum_processes: 4\nuse_fsdp: false\n")
    job = [*SFT, "--config", "c.yaml"]
    launcher = words(settings(*job))
    assert Path(launcher[3]).name == "zero3.yaml"
    assert launcher[4:7] == ["--num_processes", "4", "-m"]
    launcher = words(settings(*job, "--accelerate_config=zero2", "--num-processes", "2"))
    assert Path(launcher[3]).name == "zero2.yaml", "the command line counts first"
    assert launcher[4:6] == ["--num-processes", "2"]


def test_it_resumes_from_the_newest_complete_checkpoint() -> None:
    output = Path.cwd() / "out"
    given = settings(*SFT, "--output_dir", "out", "--resume_from_checkpoint", "/other/c-9")
    assert RECIPE.latest(given) is None
    assert words(given)[-2:] == ["--resume_from_checkpoint", "/other/c-9"], "the user's, at first"
    for step in (5, 10):
        checkpoint(output, step)
    (output / "checkpoint-10" / "model.safetensors").unlink()
    assert RECIPE.latest(given) == 5
    assert words(given, 5)[-2:] == ["--resume_from_checkpoint", str(output / "checkpoint-5")]


def test_an_output_below_the_home_directory_is_where_transformers_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd() / "home"))
    code = {"ROLLCALL_RUNTIME_ENV": json.dumps({"working_dir": "https://x.org/c.zip"})}
    given = settings(*SFT, "--output_dir", "~/out", **code)
    written = Path(TrainingArguments("~/out", use_cpu=True).output_dir)
    checkpoint(written, 5)
    assert RECIPE.latest(given) == 5
    assert RECIPE.faults(given) == [], "it is not a path below the copy of working_dir"


def test_a_start_of_the_users_beside_a_newer_checkpoint_is_refused_until_the_run_has_begun() -> (
    None
):
    for step in (5, 10):
        checkpoint(Path.cwd() / "out", step)
    job = (*SFT, "--output_dir", "out", "--resume_from_checkpoint")
    (fault,) = RECIPE.faults(settings(*job, "out/checkpoint-5"))
    newest = Path.cwd() / "out/checkpoint-10"
    assert f"out/checkpoint-5 and {newest} contradict each other" in fault
    assert "give another --output_dir" in fault
    assert RECIPE.faults(settings(*job, "out/checkpoint-10")) == []
    given = settings(*job, "out/checkpoint-5")
    begun(given)
    assert RECIPE.faults(given) == [], "the newest is the run's own"


def test_a_file_of_arguments_counts_as_the_command_line_does() -> None:
    Path("c.yaml").write_text("output_dir: /out\nsave_strategy: 'no'\n")
    given = settings("trl", "dpo", "--config", "c.yaml")
    assert "--output_dir" not in words(given)
    (warning,) = RECIPE.warnings(given)
    assert "begins at step 1" in warning
    own = settings("trl", "dpo", "--config", "c.yaml", "--output_dir", "x", "--save_strategy=steps")
    assert RECIPE.warnings(own) == []


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_arguments_is_read_in_the_working_directory_of_the_job(packed: bool) -> None:
    code = Path("code")
    (code / "conf").mkdir(parents=True)
    (code / "conf/c.yaml").write_text("output_dir: /out\naccelerate_config: zero3\n")
    place = shutil.make_archive("code", "zip", code) if packed else str(code)
    given = settings(
        *("trl", "sft", "--config", "./conf/c.yaml"),
        ROLLCALL_RUNTIME_ENV=json.dumps({"working_dir": place}),
    )
    assert trl._launched(given).job[:3] == ("accelerate", "launch", "--config_file")
    assert trl._output(given) == Path("/out")


def test_the_users_variables_replace_what_the_recipe_knows() -> None:
    given = settings(
        *("train.py", "--output_dir", "out"),
        ROLLCALL_STEP_PATTERN=r"at (?P<step>\d+)",
        ROLLCALL_CHECKPOINTS="out/c-{step}",
        ROLLCALL_RESUME_ARGS="--load {checkpoint}",
    )
    checkpoint(Path.cwd() / "out", 5)
    (Path.cwd() / "out/c-3").mkdir()
    (Path.cwd() / "out/c-3/x").touch()
    assert RECIPE.latest(given) == 3
    assert RECIPE.step_pattern(given).pattern == r"at (?P<step>\d+)"
    assert words(given, 3)[-2:] == ["--load", str(Path.cwd() / "out/c-3")]


@pytest.mark.parametrize(
    ("job", "environ", "fault"),
    [
        ((), {}, "ROLLCALL_RECIPE=trl has nothing to train"),
        (("trl", "ppo"), {}, "trl has no training script ppo: it has distillation, dpo, grpo"),
        (("trl", "vllm_serve"), {}, "trl has no training script vllm_serve"),
        (("trian.py",), {}, "trian.py is not a file in "),
        (("bash", "-c", "true"), {}, "bash is not a Python script"),
        (
            (*SFT, "--resume_from_checkpoint", "True"),
            {},
            "is not a checkpoint's path: leave it out",
        ),
        (
            (*SFT, "--chat_template_path", "a.jinja"),
            {},
            "--chat_template_path a.jinja is not a file in ",
        ),
        (
            (*SFT, "--config", "/none.yaml"),
            {},
            "--config /none.yaml is not a file: give the file's path as the nodes",
        ),
        (
            (*SFT, "--output_dir", "out"),
            {"ROLLCALL_RUNTIME_ENV": json.dumps({"working_dir": "https://x.org/c.zip"})},
            "which Ray deletes: give an absolute path",
        ),
        (
            (*SFT, "--resume_from_checkpoint", "/c"),
            {"ROLLCALL_RESUME_ARGS": "--resume_from_checkpoint=/d"},
            "the job has --resume_from_checkpoint, and ROLLCALL_RESUME_ARGS adds "
            "--resume_from_checkpoint: leave one of the two out",
        ),
    ],
)
def test_what_cannot_run_is_a_fault_before_anything_starts(
    job: tuple[str, ...], environ: dict[str, str], fault: str
) -> None:
    (found,) = RECIPE.faults(settings(*job, **environ))
    assert fault in found


def test_what_a_script_of_the_user_s_makes_of_a_flag_is_its_own() -> None:
    assert RECIPE.faults(settings("train.py", "--config", "base", "--output_dir", "out")) == []
    model = settings(*SFT, "--chat_template_path", "Qwen/Qwen3-4B")
    assert RECIPE.faults(model) == [], "a template of a model of the hub"


def test_an_image_without_trl_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl, "find_spec", lambda name: None)
    (fault,) = RECIPE.faults(settings(*SFT))
    assert "this image has no TRL: use the images `cpu`, `cuda` or `rocm`" in fault


def test_zero_cannot_resume_with_another_number_of_ranks() -> None:
    path = checkpoint(Path.cwd() / "hf", 6)
    for rank in range(4):
        torch_file(path / f"global_step6/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (path / "latest").write_text("global_step6")
    nodes = [NodeResources(name=f"gn{n}", gpus=2) for n in range(2)]
    assert RECIPE.placed(settings(*SFT), nodes).lacking == ()
    (lacking,) = RECIPE.placed(settings(*SFT), nodes[:1]).lacking
    assert "checkpoint-6 was saved by 4 ranks of DeepSpeed's ZeRO" in lacking
    assert "cannot load it on 2" in lacking


def test_the_line_of_a_step_and_of_a_usage_error() -> None:
    line = "rollcall: step 3/40 loss 1.5 reward 0.5 kl 0.01 eval 0.7"
    match = RECIPE.step_pattern(settings(*SFT)).search(line)
    assert match
    assert match.groupdict() == {
        **{"step": "3", "total_steps": "40", "loss": "1.5"},
        **{"reward": "0.5", "kl": "0.01", "eval": "0.7"},
    }
    bar = "  0%|          | 2/400 [00:09<31:28,  4.74s/it]"
    behind = RECIPE.step_pattern(settings(*SFT)).search(f"{bar}rollcall: step 3/400")
    assert behind
    assert behind["step"] == "3"
    line = "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--x']"
    assert RECIPE.failure_in(line) is FailureClass.USAGE
    assert RECIPE.failure_in("ValueError: x") is None


OF_CODE = "from trl import SFTTrainer\nSFTTrainer('m', train_dataset=[]).train()\n"
OF_FLAGS = "from trl import SFTConfig, SFTTrainer, TrlParser\nTrlParser(SFTConfig)\n"


@pytest.mark.parametrize("typed", ["torchrun", "accelerate launch", "python3", "A=b python -u"])
def test_a_script_with_a_trainer_resumes_whoever_starts_it(
    typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    job = [*typed.split(), "train.py"]
    assert recipe_of(job) == ("torchrun" if "launch" in typed or "run" in typed else "command")
    Path("train.py").write_text(OF_CODE)
    assert recipe_of(job) == "trl"
    given = settings(*job)
    assert RECIPE.faults(given) == []
    made = RECIPE.command(given, None)
    assert made.argv[-len(job) :] == tuple(job), "it takes no flags"
    assert RESUME_CHECKPOINT not in made.env
    checkpoint(Path("out"), 4)
    RunFiles(Path.cwd()).link_exported(Path("out"))
    assert RECIPE.latest(given) == 4
    made = RECIPE.command(given, 4)
    assert made.argv[-len(job) :] == tuple(job)
    assert Path(made.env[RESUME_CHECKPOINT]).resolve() == Path("out/checkpoint-4").resolve()


def test_a_script_that_takes_the_trainers_flags_gets_them() -> None:
    Path("train.py").write_text(f"{OF_FLAGS}{OF_CODE}")
    assert recipe_of(["torchrun", "train.py"]) == "trl"
    given = settings("torchrun", "train.py")
    checkpoint(Path("hf"), 4)
    newest = str(Path.cwd() / "hf/checkpoint-4")
    made = RECIPE.command(given, RECIPE.latest(given))
    assert made.argv[-4:] == (
        *("--output_dir", str(Path.cwd() / "hf")),
        *("--resume_from_checkpoint", newest),
    )
    assert made.env[RESUME_CHECKPOINT] == newest, "the script may leave the flag unread"


def test_a_script_of_a_python_that_cannot_tell_steps_keeps_its_launcher() -> None:
    Path("train.py").write_text(OF_CODE)
    assert recipe_of(["/opt/x/bin/torchrun", "train.py"]) == "torchrun"
    assert recipe_of(["/opt/x/bin/python", "train.py"]) == "command"


def test_a_script_in_the_working_directory_of_a_submitted_job_is_known() -> None:
    Path("away").mkdir()
    Path("away/train.py").write_text(OF_CODE)
    job = ["torchrun", "train.py"]
    assert recipe_of(job) == "torchrun"
    assert recipe_of(job, runtime_env={"working_dir": "away"}) == "trl"
    archive = shutil.make_archive("package", "zip", "away")
    assert recipe_of(job, runtime_env={"working_dir": archive}) == "trl"
    assert recipe_of(job, runtime_env={"working_dir": "s3://bucket/away.zip"}) == "torchrun"


def test_the_python_of_an_environment_that_is_first_in_path_runs_its_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("train.py").write_text(OF_CODE)
    python = Path(other_trl(sys.executable)).with_name("python")
    monkeypatch.setenv("PATH", str(python.parent))
    assert recipe_of(["python", "train.py"]) == "command"
    assert recipe_of(["torchrun", "train.py"]) == "trl", "torchrun is Rollcall's own in any case"


def test_what_a_script_with_a_trainer_is_said_to_be() -> None:
    Path("train.py").write_text(OF_CODE)
    said = recognised(["torchrun", "train.py"], None).said
    assert said.startswith(
        "train.py, which trains with transformers' Trainer, once for each GPU: recipe"
    )
