"""The recipe of the trainer that the image carries: the user's flags and the settings' together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from contract.manifest import checkpoint_path, write_manifest
from contract.resources import NodeResources
from entrypoint.config.read import read_settings
from entrypoint.job.recipes.builtin.recipe import RECIPE

URL = "http://reward:5000/get_reward"


def arguments(run_dir: Path, *job: str) -> list[str]:
    environ = {"ROLLCALL_RUN_DIR": str(run_dir), "ROLLCALL_REWARD_URL": URL}
    return list(RECIPE.command(read_settings(environ, job), None).argv)


def test_the_settings_reward_url_is_used_where_no_flag_gives_one(tmp_path: Path) -> None:
    argv = arguments(tmp_path, "--gamma", "0.9")
    assert [flag for flag, value in pairwise(argv) if value == URL] == ["--remote_rm_url"]


@pytest.mark.parametrize("flag", ["--remote_rm_url", "--reward.remote_url"])
def test_a_reward_url_of_the_user_s_stays_in_whatever_spelling(tmp_path: Path, flag: str) -> None:
    apart, joined = (flag, "http://mine"), (f"{flag}=http://mine",)
    for words in (apart, joined):
        argv = arguments(tmp_path, *words)
        assert URL not in argv
        at = argv.index(words[0])
        assert argv[at : at + len(words)] == list(words)


def test_a_reward_url_of_the_user_s_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("reward: {remote_url: 'http://mine'}\n")
    argv = arguments(tmp_path, "--config", str(path))
    assert URL not in argv
    assert ("--config", str(path)) in pairwise(argv)


def test_faults_of_a_file_are_found_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("actor: {adam: {ler: 1}}\n")
    settings = read_settings({"ROLLCALL_RUN_DIR": str(tmp_path)}, ["--config", str(path)])
    faults = RECIPE.faults(settings)
    assert any(f"{path}: actor.adam.ler: unknown key" in fault for fault in faults)
    assert any("--prompt_data: is required" in fault for fault in faults)


def test_the_nodes_of_the_roll_are_compared_with_the_layout(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "1+1="}\n')
    job = ["--pretrain", "some/model", "--prompt_data", str(prompts), "--critic_num_gpus_per_node"]
    environ = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_REWARD_URL": URL}
    settings = read_settings(environ, [*job, "8"])
    nodes = [NodeResources(name=name, gpus=4, cpus=8) for name in ("head", "worker-1")]
    assert RECIPE.placed(settings, nodes).lacking == (
        "critic wants 8 GPUs on 1 node; 2 nodes offer 4, 4",
    )
    assert RECIPE.placed(read_settings(environ, [*job, "4"]), nodes).lacking == ()


def test_the_trainer_may_be_silent_for_as_long_as_it_waits_for_its_rewards(tmp_path: Path) -> None:
    environ = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_REWARD_TIMEOUT": "20m"}
    prompts = tmp_path / "prompts.jsonl"
    prompts.touch()
    job = ["--pretrain", "model", "--prompt_data", str(prompts), "--remote_rm_url", URL]
    assert RECIPE.service_outage(read_settings(environ, job)) == 1200
    given = [*job, "--remote_rm_deadline", "3600"]
    assert RECIPE.service_outage(read_settings(environ, given)) == 3600
    episodes = [*job, "--environment", "single-turn", "--max_episode_seconds", "900"]
    assert RECIPE.service_outage(read_settings(environ, episodes)) == 4 * 900


def test_the_file_of_an_environment_is_read_and_not_run(tmp_path: Path) -> None:
    path, imported = tmp_path / "own.py", "from env.episodes.tools import ToolEnv"
    words = ["--environment", f"{path}:Own", "--pretrain", "some/model"]
    settings = read_settings({"ROLLCALL_RUN_DIR": str(tmp_path)}, words)
    for text, fault in {
        "class Own(Environment:": "line 1 is not Python code",
        "raise SystemExit": "the file defines no Own",
        f"{imported}\nclass Own(ToolEnv):\n    def step(self, reply): ...": (
            "Own.step, line 3, must be `async def`"
        ),
    }.items():
        path.write_text(text)
        assert any(fault in found for found in RECIPE.faults(settings))
    path.write_text(
        "import x\nclass Own:\n    async def step(self, reply): ...\nraise SystemExit\n"
    )
    assert not any("--environment" in found for found in RECIPE.faults(settings))


def test_the_newest_checkpoint_is_looked_for_where_the_flags_put_it(tmp_path: Path) -> None:
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for words, place in (
        ([], run_dir / "checkpoints"),
        (["--ckpt_path", "./ckpt/llama"], run_dir / "ckpt/llama"),
        (["--ckpt_path", str(elsewhere)], elsewhere),
    ):
        settings = read_settings({"ROLLCALL_RUN_DIR": str(run_dir)}, words)
        assert RECIPE.latest(settings) is None
        saved = checkpoint_path(place, 7)
        saved.mkdir(parents=True)
        write_manifest(saved, 7)
        assert RECIPE.latest(settings) == 7, "also if a file that the flags name is away"


def test_a_directory_outside_of_the_run_directory_is_warned_of(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "1+1="}\n')
    words = ["--pretrain", "some/model", "--prompt_data", str(prompts), "--ckpt_path"]
    environ = {"ROLLCALL_RUN_DIR": str(tmp_path / "run"), "ROLLCALL_REWARD_URL": URL}
    nodes = [NodeResources(name="head", gpus=1, gpu_memory=80 * 10**9, cpus=8)]

    def warned(ckpt_path: str) -> tuple[str, ...]:
        return RECIPE.placed(read_settings(environ, [*words, ckpt_path]), nodes).warnings

    assert warned("./ckpt") == ()
    (warning,) = warned("/openrlhf/ckpt")
    assert warning.startswith("--ckpt_path /openrlhf/ckpt is outside of the run directory")


@pytest.mark.parametrize("flag", ["--ckpt_path", "--save_path"])
def test_a_directory_that_is_not_uploaded_to_the_store_is_refused(
    tmp_path: Path, flag: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "1+1=", "label": "2"}\n')
    job = ["--pretrain", "some/model", "--prompt_data", str(prompts), "--remote_rm_url", URL]
    environ = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_TOKEN": "0123456789abcdef"}
    stored = environ | {"ROLLCALL_STORAGE": "s3://bucket/run"}

    def refused(environ: dict[str, str], *more: str) -> list[str]:
        return [
            fault
            for fault in RECIPE.faults(read_settings(environ, [*job, *more]))
            if "is not uploaded" in fault
        ]

    assert refused(stored) == refused(environ, flag, "mine") == []
    (fault,) = refused(stored, flag, "mine")
    assert fault.startswith(f"{flag}: {tmp_path}/mine is not uploaded to ROLLCALL_STORAGE=s3://")
    assert fault.endswith("Leave the flag out")
