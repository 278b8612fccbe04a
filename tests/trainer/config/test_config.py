from __future__ import annotations

from pathlib import Path

import pytest

from contract.options import ConfigError, MissingFile
from tests.support.tiny_run import Tiny, faults_of
from trainer.config.parse import named_in, parse


def test_every_fault_is_reported_at_once() -> None:
    faults = faults_of(
        pretrian="x", eps_clip="wide", gamma=2, kl_estimator="k9", prompt_data="/nowhere.jsonl"
    )
    assert "Did you mean --pretrain?" in faults["--pretrian"]
    assert "is required" in faults["--remote_rm_url"]
    assert "must be a number (given: wide)" in faults["--eps_clip"]
    assert "must be at most 1 (given: 2)" in faults["--gamma"]
    assert "k1, k2, k3" in faults["--kl_estimator"]
    assert "no such file (given: /nowhere.jsonl)" in faults["--prompt_data"]


@pytest.mark.parametrize(
    ("flags", "flag", "would"),
    [
        ({"rollout_batch_size": 96, "train_batch_size": 40}, "--train_batch_size", "32 or 48"),
        (
            {"rollout_batch_size": 64, "train_batch_size": 64, "micro_train_batch_size": 12},
            "--micro_train_batch_size",
            "8 or 16",
        ),
        ({"rollout_batch_size": 8, "train_batch_size": 64}, "--train_batch_size", "8 would"),
    ],
)
def test_batch_sizes_that_do_not_divide_name_those_that_would(
    flags: dict[str, int], flag: str, would: str
) -> None:
    assert would in faults_of(**flags)[flag]


def test_a_model_directory_without_a_model_is_a_fault(tmp_path: Path) -> None:
    assert "no config.json" in faults_of(pretrain=tmp_path)["--pretrain"]


def test_grpo_with_one_sample_is_a_fault() -> None:
    assert "at least 2" in faults_of(advantage_estimator="group_norm")["--n_samples_per_prompt"]


@pytest.mark.parametrize("argv", [["stray"], ["--gamma", "0.9", "stray"], ["--bf16", "stray"]])
def test_a_value_without_its_flag_is_a_fault(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match="'stray': belongs to no flag"):
        parse(argv)


def test_a_flag_without_its_value_is_a_fault_beside_all_others() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["--gamma", "--adam_betas", "0.9", "--actor.eps_clpi", "3", "--seed"])
    said = str(caught.value)
    assert "--gamma: needs a value: a number" in said
    assert "--adam_betas: must be 2 numbers (given: 0.9)" in said
    assert "--actor.eps_clpi: unknown flag. Did you mean --actor.eps_clip?" in said
    assert "--seed: needs a value: a whole number from 0 to 2^53" in said
    assert "--run_dir: is required" in said
    with pytest.raises(ConfigError, match="--config: needs a value: a file of flags"):
        parse(["--config"])


def test_a_number_that_json_does_not_hold_and_an_object_that_is_too_deep_are_faults() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["--max_steps", "1" + "0" * 20, "--environment_args", "[" * 3000])
    said = str(caught.value)
    assert "--max_steps: must be a whole number from 1 to 2^53" in said
    assert "--environment_args: must be a JSON object" in said


def test_a_flag_at_fault_is_named_as_it_was_spelt() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["--train.batch_size", "many", "--algo.advantage.estimator", "grpo"])
    flags = [fault.path for fault in caught.value.faults]
    assert "--train.batch_size" in flags
    assert "--algo.advantage.estimator" in flags
    assert "--train_batch_size" not in flags


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--reward.remote_url", "http://x"], {"remote_rm_url"}),
        (["--remote_rm_url=http://x", "--l2", "0.1"], {"remote_rm_url", "l2"}),
        (["--pretrian", "x"], set()),
    ],
)
def test_what_is_given_is_known_by_its_field(argv: list[str], named: set[str]) -> None:
    assert named_in(argv) == named


def test_relative_paths_become_absolute_for_actors_elsewhere(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny.model.parent)
    config = tiny.config(run_dir, pretrain="./model", prompt_data="train.jsonl")
    assert Path(config.pretrain) == tiny.model
    assert config.prompt_data is not None
    assert config.prompt_data.paths == (tiny.prompts,)


def test_the_alias_of_the_newer_guides_is_understood(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, generate_max_len=None, max_new_tokens=7)
    assert config.sampling.max_new_tokens == 7


def test_steps_come_from_the_data_unless_given(tiny: Tiny, run_dir: Path) -> None:
    assert tiny.config(run_dir, max_steps=None, num_episodes=3).total_steps(24) == 18
    assert tiny.config(run_dir, max_steps=5).total_steps(24) == 5
    assert tiny.config(run_dir, max_steps=50).total_steps(24) == 50, "over several passes"


def test_passes_and_steps_that_are_both_given_end_the_run_by_what_comes_first(
    tiny: Tiny, run_dir: Path
) -> None:
    assert tiny.config(run_dir, max_steps=5, num_episodes=3).total_steps(24) == 5
    assert tiny.config(run_dir, max_steps=50, num_episodes=3).total_steps(24) == 18
    assert tiny.config(run_dir, max_steps=50, num_episodes=3).warnings == ()


def test_checkpoints_and_model_at_a_relative_path_are_below_the_run_directory(
    tiny: Tiny, tmp_path: Path
) -> None:
    """As in OpenRLHF's guides; the working directory of a container is lost with it."""
    guide = {"ckpt_path": "./checkpoints/llama", "save_path": "./output/llama"}
    config = tiny.config(tmp_path / "run", **guide)
    assert config.checkpoints == tmp_path / "run/checkpoints/llama"
    assert config.exported == tmp_path / "run/output/llama"
    config = tiny.config(tmp_path / "run", ckpt_path=tmp_path / "elsewhere")
    assert config.checkpoints == tmp_path / "elsewhere"
    assert config.exported == config.files.exported
    assert config.exported_critic == config.files.exported_critic


def test_a_file_that_is_not_there_names_the_nearest_that_is(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    missing = MissingFile("--prompt_data", str(tmp_path / "trian.jsonl"), "no such file", "Give it")
    assert str(missing).endswith(f"Give it. In {tmp_path} there is train.jsonl")
    assert missing.with_place().remedy == f"Give it. In {tmp_path} there is train.jsonl"
    other = MissingFile("--prompt_data", str(tmp_path / "gsm8k"), "no such file", "Give it")
    assert str(other).endswith("(given: " + str(tmp_path / "gsm8k") + "). Give it")


def test_a_path_that_is_meant_from_the_file_of_flags_says_where_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/run.yaml").write_text("remote_rm_url: reward.py\nprompt_data: no.jsonl\n")
    (tmp_path / "slurm/reward.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        parse(["--config", "slurm/run.yaml", "--pretrain", "some/model"])
    said = {fault.path: str(fault) for fault in caught.value.faults}
    assert said["--remote_rm_url"].endswith(
        f"Relative paths are read from the working directory: {tmp_path}/reward.py is not there. "
        "slurm/reward.py is: give that, or type `cd slurm` first"
    )
    assert "Relative paths" not in said["--prompt_data"]
