"""What a run was begun with, and what is said where it goes on with another command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from contract.options import ConfigError
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.job.run_identity import differences, identify, record_difference
from entrypoint.run import run_facts
from entrypoint.run.journal import Journal
from tests.support.damage import damaged

BEGUN = ("--actor_learning_rate", "1e-6", "--save_steps=5", "--prompt_data", "a.jsonl")


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path)


def begin(run: RunFiles, *job: str, recipe: str = "builtin", **env: str) -> list[dict[str, Any]]:
    """The events of kind `command` that there are after a start with that job."""
    given = {"ROLLCALL_RUN_DIR": str(run.root), "ROLLCALL_RECIPE": recipe, **env}
    journal = Journal(run.journal, "head")
    config = read_settings(given, job)
    record_difference(config, identify(config, run), journal)
    return list(journal.events("command"))


def test_the_same_command_says_nothing(run: RunFiles) -> None:
    assert begin(run, *BEGUN) == []
    before = run.run.read_bytes()
    assert begin(run, *BEGUN) == []
    assert run.run.read_bytes() == before


def test_the_flags_of_a_file_and_its_model_are_facts_of_the_run(
    run: RunFiles, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("pretrain: Qwen/Qwen2.5-0.5B\nactor: {adam: {lr: 1e-6}}\n")
    begin(run, "--config", str(file), "--use_wandb", "0123456789abcdef", "--seed", "3")
    assert run_facts.read(run)["model"] == "Qwen2.5-0.5B"
    given = run_facts.flags(run)
    assert (given["actor.adam.lr"], given["seed"]) == ("1e-6", "3")
    assert "0123456789abcdef" not in run.run.read_text()


def test_the_flags_of_any_program_are_facts_of_the_run(run: RunFiles) -> None:
    begin(run, "python3", "train.py", "--lr", "0.1", "--token=abcdef", recipe="command")
    assert run_facts.flags(run) == {"": "python3 train.py", "lr": "0.1", "token": "********"}


@pytest.mark.parametrize(
    ("recipe", "program", "model"),
    [
        ("verl", "python3 -m verl.trainer.main_ppo", "actor_rollout_ref.model.path"),
        ("verl-sft", "torchrun --nproc-per-node 8 -m verl.trainer.sft_trainer", "model.path"),
    ],
)
def test_each_override_of_verl_is_a_flag_of_the_run(
    run: RunFiles, recipe: str, program: str, model: str
) -> None:
    words = (f"{model}=/models/Qwen2.5-7B", "+data.seed=1", "data.seed=2", "~trainer.val", "k=a=b")
    begin(run, *program.split(), *words, "wandb.api_key=abcdef", recipe=recipe)
    given = run_facts.flags(run)
    assert given.pop("").startswith(program)
    assert given == {
        model: "/models/Qwen2.5-7B",
        "data.seed": "2",
        "k": "a=b",
        "wandb.api_key": "********",
    }
    assert run_facts.read(run)["model"] == "Qwen2.5-7B"


def test_a_run_of_an_earlier_version_has_no_flags(run: RunFiles) -> None:
    run.run.write_text('{"run_id": "0", "flags": ["--seed"]}')
    assert run_facts.flags(run) == {}


def test_every_flag_that_differs_is_named_with_what_takes_effect(run: RunFiles) -> None:
    begin(run, *BEGUN)
    (event,) = begin(run, "--actor_learning_rate", "5e-7", "--prompt_data=b.jsonl", "--ema")
    assert event["details"]["differs"] == [
        "--actor_learning_rate was 1e-6 and is 5e-7",
        "--save_steps 5 is not given any more",
        "--prompt_data was a.jsonl and is b.jsonl",
        "--ema is new",
    ]
    assert event["sentence"].endswith(
        "--ema is new. The new one holds for all steps that are still to be made; "
        "a run that has finished steps refuses other prompts"
    )


def test_a_flag_in_openrlhfs_newer_spelling_has_the_same_effect(run: RunFiles) -> None:
    begin(run, *BEGUN)
    (event,) = begin(run, *BEGUN[:3], "--data.prompt_dataset", "b.jsonl")
    assert "refuses other prompts" in event["sentence"]


@pytest.mark.parametrize("recipe", ["builtin", "supervised", "trl", "command"])
def test_other_flags_in_the_file_of_config_are_noticed(
    run: RunFiles, tmp_path: Path, recipe: str
) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text("save_steps: 5\nmax_steps: 100\n")
    words = ("sft", "--config", str(file))
    assert begin(run, *words, recipe=recipe) == []
    file.write_text("# only a comment\nmax_steps: 100\nsave_steps: 5\n")
    assert begin(run, *words, recipe=recipe) == []
    file.write_text("save_steps: 5\nmax_steps: 200\n")
    (event,) = begin(run, *words, recipe=recipe)
    assert event["details"]["differs"] == ["the file of --config has other content"]


def test_other_words_of_a_command_and_another_recipe_are_named(run: RunFiles) -> None:
    begin(run, "python", "train.py", "--lr", "1", recipe="command")
    (event,) = begin(run, "python", "other.py", "--lr", "1", recipe="command")
    assert "its first words were python train.py and are python other.py" in event["sentence"]
    assert "what it keeps of the run so far is its own to say" in event["sentence"]
    *_, event = begin(run, *BEGUN)
    assert "the recipe was command and is builtin. The new one holds" in event["sentence"]


def test_no_secret_of_a_command_is_written_down_and_another_one_is_noticed(run: RunFiles) -> None:
    words = ("--token", "hf_first_secret", "--api", "https://me:first_password@host")
    begin(run, *words, recipe="command", HF_TOKEN="hf_first_secret")
    changed = ("--token", "hf_second_secret", "--api", "https://me:second_password@host")
    (event,) = begin(run, *changed, recipe="command", HF_TOKEN="hf_second_secret")
    assert "a secret, or the order of its words, is another" in event["sentence"]
    written = run.run.read_text() + run.journal.read_text()
    assert "_secret" not in written
    assert "_password" not in written


@pytest.mark.parametrize("command", [None, "x", [1]])
def test_a_run_file_of_an_earlier_version_is_still_read(run: RunFiles, command: object) -> None:
    row = {"run_id": "0", "recipe": "builtin", "fingerprint": "0", "versions": {}, "created": ""}
    run.run.write_text(json.dumps(row if command is None else row | {"command": command}))
    before = run.run.read_bytes()
    (event,) = begin(run, *BEGUN)
    assert "run.json does not say in what" in event["sentence"]
    assert run.run.read_bytes() == before


ROW = {"run_id": "0", "recipe": "builtin", "fingerprint": "f", "command": ["--lr", "1"]}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged(ROW))
def test_a_damaged_run_file_is_written_anew_or_read(run: RunFiles, content: bytes) -> None:
    run.run.write_bytes(content)
    begin(run, *BEGUN)
    assert isinstance(json.loads(run.run.read_bytes())["fingerprint"], str)


def test_options_are_told_apart_from_their_values() -> None:
    assert differences(["a", "--x", "1", "2"], ["a", "--x=1", "2"]) == {}
    assert differences(["--x"], ["--x", "1"]) == {"x": "--x was bare and is 1"}
    assert differences(["--x", "1"], []) == {"x": "--x 1 is not given any more"}


def test_the_name_of_a_run_is_kept_and_a_later_start_may_give_another(run: RunFiles) -> None:
    begin(run, *BEGUN)
    assert run_facts.read(run)["name"] == run.root.name
    begin(run, *BEGUN, ROLLCALL_NAME="low rate")
    begin(run, *BEGUN)
    assert run_facts.read(run)["name"] == "low rate"
    assert begin(run, *BEGUN, ROLLCALL_NAME="high rate") == []  # it is the same command
    assert run_facts.read(run)["name"] == "high rate"


def test_a_name_that_no_page_could_show_is_refused(run: RunFiles) -> None:
    with pytest.raises(ConfigError, match=r"ROLLCALL_NAME=.* is no name of a run: use at most 64"):
        begin(run, *BEGUN, ROLLCALL_NAME="a\x1b[2Jb")
