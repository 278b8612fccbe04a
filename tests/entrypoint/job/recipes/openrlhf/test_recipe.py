"""The recipe `openrlhf`: launches, releases, resume, faults and lines of steps."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from entrypoint.job.recipes import interpreters
from entrypoint.job.recipes.openrlhf import release
from entrypoint.job.recipes.openrlhf.recipe import RECIPE
from entrypoint.run.failure_classes import FailureClass
from tests.support.hf_checkpoints import torch_file
from tests.support.openrlhf_checkpoints import checkpoint
from tests.support.openrlhf_parser import PACKAGE, parsed, reserved
from tests.support.openrlhf_recipe import RANKS, SHORT, flags, settings
from tests.support.recipe_commands import nodes


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """The release that the image's Python has; a test may change it."""
    versions: dict[str, str | None] = {"openrlhf": "0.11.2"}
    monkeypatch.setattr(release, "version_in", lambda _, package: versions[package])
    monkeypatch.setattr(interpreters, "package_in", lambda *_: PACKAGE)
    return versions


@pytest.mark.parametrize(
    ("before", "launched"),
    [
        ("deepspeed --module openrlhf.cli.train_sft", "deepspeed --module openrlhf.cli.train_sft"),
        ("python3 -m openrlhf.cli.train_sft", "-m openrlhf.cli.train_sft"),
        ("openrlhf.cli.train_sft", "-m openrlhf.cli.train_sft"),
        ("A=1 python -u -m openrlhf.cli.train_rm", "A=1 python -u -m openrlhf.cli.train_rm"),
        (
            "python -m torch.distributed.run -m openrlhf.cli.train_sft",
            "python -m torch.distributed.run -m openrlhf.cli.train_sft",
        ),
    ],
)
def test_what_else_runs_on_all_nodes(tmp_path: Path, before: str, launched: str) -> None:
    given = settings(tmp_path, *before.split(), "--data.dataset", "d")
    assert RECIPE.faults(given) == []
    words = RECIPE.command(given, None).argv[len(RANKS) :]
    assert " ".join(words).startswith(f"{launched} --data.dataset d --ckpt.path")


def test_older_releases_get_the_flat_flags(tmp_path: Path, version: dict[str, str | None]) -> None:
    version["openrlhf"] = "0.9.10"
    given = settings(tmp_path, "--pretrain", "m", "--colocate_all_models", "--load_checkpoint")
    checkpoint(tmp_path / "openrlhf", 4)
    words = flags(RECIPE.placed(given, nodes(8, 8)).settings)
    assert words == [
        *("--pretrain", "m", "--colocate_all_models"),
        *("--actor_num_nodes", "2", "--actor_num_gpus_per_node", "8"),
        *("--ref_num_nodes", "2", "--ref_num_gpus_per_node", "8"),
        *("--critic_num_nodes", "2", "--critic_num_gpus_per_node", "8"),
        *("--reward_num_nodes", "2", "--reward_num_gpus_per_node", "8"),
        *("--vllm_num_engines", "16", "--ckpt_path", f"{tmp_path}/openrlhf"),
        *("--save_path", f"{tmp_path}/hf", "--save_steps", "20", "--load_checkpoint"),
    ]


def test_without_a_known_release_the_flags_stay_as_they_are_typed(
    tmp_path: Path, version: dict[str, str | None]
) -> None:
    version["openrlhf"] = None
    brought = '{"pip": ["openrlhf"]}'
    given = settings(tmp_path, "--pretrain", "m", ROLLCALL_RUNTIME_ENV=brought)
    assert RECIPE.faults(given) == []
    assert flags(given)[:4] == ["--pretrain", "m", "--ckpt_path", f"{tmp_path}/openrlhf"]
    given = settings(tmp_path, *SHORT, ROLLCALL_RUNTIME_ENV=brought)
    assert "--ckpt.path" in flags(given)


def test_it_resumes_from_the_newest_step_that_actor_and_critic_have(tmp_path: Path) -> None:
    given = settings(tmp_path, *SHORT, "--ckpt.path", "out", "--ckpt.load_enable")
    assert "--ckpt.load_enable" not in flags(given), "OpenRLHF fails if there is nothing to load"
    for step in (2, 4):
        checkpoint(tmp_path / "out", step)
    checkpoint(tmp_path / "out", 6, "_actor")
    assert RECIPE.latest(given) == 4
    assert flags(given)[-1] == "--ckpt.load_enable"
    assert (tmp_path / "out/_actor/latest").read_text() == "global_step4"
    env = RECIPE.command(given, 4).env
    assert env["ROLLCALL_RESUME_FROM"] == "4"
    assert "the recipe adds it when there is" in "".join(RECIPE.warnings(given))


def test_directories_below_the_home_directory_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ROLLCALL_JOB, which no shell reads."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    given = settings(tmp_path, *SHORT, "--ckpt.path=~/out", "--ckpt.output_dir", "~/model")
    words = flags(given)
    assert words[words.index("--ckpt.path") + 1] == f"{tmp_path}/home/out"
    assert words[words.index("--ckpt.output_dir") + 1] == f"{tmp_path}/home/model"
    assert not any("relative" in warning for warning in RECIPE.warnings(given))


def test_a_half_written_checkpoint_does_not_count(tmp_path: Path) -> None:
    given = settings(tmp_path, *SHORT, "--algo.advantage.estimator", "group_norm")
    checkpoint(tmp_path / "openrlhf", 2, "_actor")
    torn = tmp_path / "openrlhf/_actor/global_step4"
    torch_file(torn / "mp_rank_00_model_states.pt")
    assert RECIPE.latest(given) == 2, "DeepSpeed's `latest` names it"
    with_critic = settings(tmp_path, *SHORT)
    assert RECIPE.latest(with_critic) is None
    assert "--ckpt.load_enable" not in flags(with_critic)


def test_an_asynchronous_run_does_not_resume_from_a_best_checkpoint(tmp_path: Path) -> None:
    """Its name has the step of the evaluation, and its content that of the training."""
    for role in ("_actor", "_critic"):
        checkpoint(tmp_path / "openrlhf", 2, role)
        best = checkpoint(tmp_path / "openrlhf", 4, role)
        best.rename(best.with_name("best_global_step4"))
        (tmp_path / "openrlhf" / role / "latest").write_text("best_global_step4")
    assert RECIPE.latest(settings(tmp_path, *SHORT)) == 4
    given = settings(tmp_path, *SHORT, "--train.async_enable")
    assert RECIPE.latest(given) == 2
    assert flags(given)[-1] == "--ckpt.load_enable"
    assert (tmp_path / "openrlhf/_critic/latest").read_text() == "global_step2"


def test_a_resume_at_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "openrlhf", 4, ranks=4)
    given = settings(tmp_path, *SHORT)
    assert RECIPE.placed(given, nodes(2, 2)).lacking == ()
    (lacking,) = RECIPE.placed(given, nodes(2)).lacking
    assert "global_step4 was saved by 4 ranks of DeepSpeed's ZeRO, which cannot load it" in lacking
    sft = settings(tmp_path, "openrlhf.cli.train_sft", "--ckpt.path", "openrlhf/_actor")
    assert RECIPE.placed(sft, nodes(4)).lacking == ()
    (lacking,) = RECIPE.placed(sft, nodes(4, 4)).lacking
    assert "by 4 ranks of DeepSpeed's ZeRO, which cannot load it on 8: bring the nodes" in lacking


def test_another_python_runs_the_driver_and_its_actors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    given = settings(tmp_path, str(python), "-m", "openrlhf.cli.train_ppo_ray", *SHORT)
    assert RECIPE.faults(given) == []
    command = RECIPE.command(given, None)
    assert command.argv[0] == command.runtime_env["py_executable"] == str(python)
    assert "py_executable" not in RECIPE.command(settings(tmp_path, *SHORT), None).runtime_env
    (fault,) = RECIPE.faults(settings(tmp_path, str(python), "-m", "openrlhf.cli.train_sft"))
    assert "install Rollcall in that one (docs/platforms/jobs.md)" in fault
    torchrun = str(python.with_name("torchrun"))
    (fault,) = RECIPE.faults(settings(tmp_path, torchrun, "-m", "openrlhf.cli.train_sft"))
    assert f"and not with {python.with_name('python')}: install Rollcall in that one" in fault
    own = str(Path(sys.executable).with_name("torchrun"))
    assert RECIPE.faults(settings(tmp_path, own, "-m", "openrlhf.cli.train_sft")) == []
    monkeypatch.setattr(release, "version_in", lambda *_: None)
    monkeypatch.setattr(release, "others_with", lambda _: ["/opt/rl/bin/python"])
    (fault,) = RECIPE.faults(settings(tmp_path, "python3", "-m", "openrlhf.cli.train_sft"))
    assert fault == (
        f"{sys.executable} has no OpenRLHF, and /opt/rl/bin/python has it: give the path of a "
        "Python that has it, as in /opt/rl/bin/python -m openrlhf.cli.train_sft"
    )


def test_a_python_that_does_not_answer_is_not_said_to_lack_openrlhf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(interpreters, "PROBE_SECONDS", 0.5)
    monkeypatch.setattr(release, "version_in", interpreters.version_in)
    given = settings(tmp_path, str(python), "-m", "openrlhf.cli.train_ppo_ray", *SHORT)
    (fault,) = RECIPE.faults(given)
    assert fault.startswith(f"{python} did not end within 0.5 s, asked whether it has OpenRLHF")


@pytest.mark.parametrize(
    ("job", "environ", "fault"),
    [
        ("", {}, "ROLLCALL_RECIPE=openrlhf has nothing to train"),
        ("/none/python -m openrlhf.cli.train_ppo_ray", {}, "/none/python is not there"),
        (
            "--load_checkpoint --disable_ds_ckpt",
            {},
            "--load_checkpoint and --disable_ds_ckpt contradict each other",
        ),
        (
            "--ckpt_path /a --ckpt.path /b",
            {},
            "--ckpt_path /a and --ckpt.path /b contradict each other: leave one of the two out",
        ),
        ("--ckpt.save_steps 0", {}, "--ckpt.save_steps 0 is not a number of steps: give 1 or more"),
        ("--actor_num_nodes x", {}, "--actor_num_nodes x is not a number of 1 or more"),
        ("--ptx_coef 0.1", {}, "OpenRLHF 0.11.2: leave it out: there is no loss on"),
        ("-m openrlhf.cli.serve_rm", {}, "openrlhf.cli.serve_rm is not a training program"),
        (
            "torchrun -m openrlhf.cli.train_ppo_ray",
            {},
            "torchrun starts openrlhf.cli.train_ppo_ray once for each GPU, and it runs once",
        ),
        ("python3 -m openrlhf.cli.train_sft x --a 1", {}, "x belongs to no flag: give --name"),
        ("torchrun --virtual-local-rank -m openrlhf.cli.train_sft", {}, "cannot be used here"),
        ("--a 1", {"ROLLCALL_CHECKPOINTS": "c-{step}"}, "the recipe openrlhf knows it: leave it"),
        ("--a 1", {"ROLLCALL_RESUME_ARGS": "--load_checkpoint"}, "ROLLCALL_RESUME_ARGS is set"),
    ],
)
def test_what_cannot_run_is_a_fault_before_anything_starts(
    tmp_path: Path, job: str, environ: dict[str, str], fault: str
) -> None:
    (found,) = RECIPE.faults(settings(tmp_path, *shlex.split(job), **environ))
    assert fault in found


def test_checkpoints_that_the_user_switches_off_are_a_warning(tmp_path: Path) -> None:
    checkpoint(tmp_path / "openrlhf", 2)
    given = settings(tmp_path, *SHORT, "--ckpt.disable_ds", "--ds.use_universal_ckpt")
    assert RECIPE.latest(given) is None
    assert "--ds.use_universal_ckpt" not in flags(given), "OpenRLHF would load nothing else"
    warnings = "\n".join(RECIPE.warnings(given))
    assert "--ckpt.disable_ds: without checkpoints, each attempt begins at step 1" in warnings
    one = settings(tmp_path, *SHORT, "--ckpt.max_num", "1")
    assert "deletes it before it writes the next" in "".join(RECIPE.warnings(one))


def test_a_template_is_the_text_of_one_and_no_file(tmp_path: Path) -> None:
    sft = ("openrlhf.cli.train_sft", "--data.tokenizer_chat_template")
    (warning,) = RECIPE.warnings(settings(tmp_path, *sft, "/x/chat.jinja"))
    assert "/x/chat.jinja is not a template: OpenRLHF takes its text, not a file" in warning
    assert RECIPE.warnings(settings(tmp_path, *sft, "{{ messages }}")) == ()


SYNC = (
    "(PPOTrainer pid=7, ip=10.0.0.2) INFO 11-24 18:22:00 ppo_trainer.py:560] ✨ Global step 12: "
    "{'policy_loss': -0.01, 'reward': 0.25, 'kl': 1e-05, 'timing/step_total': 33.5, "
    "'rollout/reward_mean': 0.5}"
)


@pytest.mark.parametrize(
    ("line", "groups"),
    [
        (SYNC, ("12", "0.5", "1e-05", "33.5")),
        ("INFO a.py:1] Global step 3: {'reward': -1.5}", ("3", "-1.5", None, None)),
        ("✨ Evaluation completed in 0:00:09, global_step 3, eval_metrics: {'a': 1}", None),
        ("Episode [1/2]:  10%|█ | 12/120 [00:10<01:00]", None),
    ],
)
def test_the_lines_of_steps(tmp_path: Path, line: str, groups: Sequence[str | None] | None) -> None:
    match = RECIPE.step_pattern(settings(tmp_path, *SHORT)).search(line)
    assert (match and match.group("step", "reward", "kl", "step_seconds")) == groups


def test_the_steps_of_ranks_are_those_that_rollcall_makes_them_tell(tmp_path: Path) -> None:
    pattern = RECIPE.step_pattern(settings(tmp_path, "openrlhf.cli.train_sft", "--a", "1"))
    match = pattern.search("Train step of epoch 0:  50%|█ | 4/8 [00:01]rollcall: step 7")
    assert match
    assert match["step"] == "7"
    assert pattern.search("Train step of epoch 0:  50%|█ | 4/8 [00:01]") is None


@pytest.mark.parametrize(
    "line",
    [
        "train_ppo_ray.py: error: unrecognized arguments: --nope",
        "AssertionError: num_nodes and num_gpus_per_node must be the same when colocate actor and",
        "AssertionError: group_norm requires n_samples_per_prompt > 1",
        "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP "
        "world size of 2 but the current world size is 1.",
    ],
)
def test_what_openrlhf_itself_refuses_is_usage(line: str) -> None:
    assert RECIPE.failure_in(line) is FailureClass.USAGE
    assert RECIPE.failure_in("AssertionError") is None


@pytest.mark.parametrize(
    "words",
    [
        "--algo.advantage.estimator group_norm",
        "--train.partial_rollout_enable",
        "--ds.packing_samples --vllm.num_engines 0",
        "--train.async_enable --vllm.enable_sleep --train.colocate_all",
        "--eval.dataset d --reward.model_name_or_path r",
        "--rollout.batch_size 8 --rollout.vllm_generate_batch_size 16",
        "--rollout.batch_size 4",
        "--algo.dynamic_filtering_enable --reward.remote_url u",
        "--data.max_images_per_prompt 1",
        "--train.colocate_actor_ref --ref.num_nodes 2",
        "--train.colocate_all --vllm.num_engines 3",
        "--train.colocate_critic_reward --critic.num_nodes 2",
    ],
)
def test_each_check_of_openrlhfs_program_is_usage(words: str) -> None:
    needed = ["--reward.model_name_or_path", "r"]
    with pytest.raises(AssertionError) as caught:
        reserved([*needed, *words.split()])
    assert RECIPE.failure_in(f"AssertionError: {caught.value}") is FailureClass.USAGE


def test_a_flag_that_openrlhf_does_not_know_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("train_ppo_ray", ["--nope", "1"])
    assert RECIPE.failure_in(capsys.readouterr().err.splitlines()[-1]) is FailureClass.USAGE
