"""Each flag means the same in every spelling, and from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from tests.support.flag_values import TABLE, argv, flat_toml, given_values, nested
from tests.support.tiny_run import Tiny
from trainer.config.config import Config
from trainer.config.parse import Reading, read


def reading(words: list[str]) -> Reading[Config]:
    return read(Config, words, "prog", "")


def faults_of(told: Reading[Config]) -> list[str]:
    """But for the flags that a whole command has besides."""
    return [str(fault) for fault in told.faults if fault.problem != "is required"]


def values_of(words: list[str]) -> Config:
    told = reading(words)
    assert {fault.problem for fault in told.faults} <= {"is required"}
    return told.config


@settings(deadline=None)
@given(given_values())
def test_flat_and_dotted_spelling_mean_the_same(values: dict[str, Any]) -> None:
    assert values_of(argv(values, dotted=True)) == values_of(argv(values, dotted=False))


@settings(deadline=None, max_examples=50)
@given(given_values())
def test_a_value_is_read_as_it_was_meant(values: dict[str, Any]) -> None:
    config = values_of(argv(values, dotted=False))
    assert {name: TABLE[name].value_in(config) for name in values} == values


@settings(deadline=None, max_examples=50)
@given(given_values())
def test_files_mean_what_the_command_line_means(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    sections, flat = folder / "dotted.yaml", folder / "flat.toml"
    sections.write_text(yaml.safe_dump(nested(values)))
    flat.write_text(flat_toml(values))
    typed = values_of(argv(values, dotted=False))
    assert values_of(["--config", str(sections)]) == typed
    assert values_of(["--config", str(flat)]) == typed


def test_a_shared_spelling_sets_policy_and_critic() -> None:
    config = values_of(["--adam_betas", "0.8", "0.9", "--max_norm", "2"])
    assert config.policy_optimizer.adam_betas == config.critic_optimizer.adam_betas == (0.8, 0.9)
    assert config.policy_optimizer.max_norm == config.critic_optimizer.max_norm == 2


def test_a_dotted_spelling_sets_its_own_model_alone() -> None:
    config = values_of(["--actor.adam.betas", "0.8", "0.9", "--critic.adam.weight_decay", "0.1"])
    assert (config.policy_optimizer.adam_betas, config.critic_optimizer.adam_betas) == (
        (0.8, 0.9),
        (0.9, 0.95),
    )
    assert (config.policy_optimizer.l2, config.critic_optimizer.l2) == (0.0, 0.1)


@pytest.mark.parametrize("turned", [False, True])
def test_the_special_spelling_beats_the_shared_one_wherever_it_stands(turned: bool) -> None:
    shared, special = ["--l2", "0.1"], ["--critic.adam.weight_decay", "0.2"]
    told = reading([*special, *shared] if turned else [*shared, *special])
    assert (told.config.policy_optimizer.l2, told.config.critic_optimizer.l2) == (0.1, 0.2)
    assert told.warnings == ()


def test_the_command_line_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("gamma: 0.5\nactor: {eps_clip: 0.1}\ncritic: {adam: {weight_decay: 0.3}}\n")
    config = values_of(["--actor.eps_clip", "0.3", "--l2", "0.1", "--config", str(path)])
    assert (config.advantage.gamma, config.loss.eps_clip, config.critic_optimizer.l2) == (
        0.5,
        0.3,
        0.1,
    )


def test_numbers_of_yaml_may_be_written_as_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("actor:\n  adam: {lr: 5e-7, betas: [0.9, 0.99]}\nbf16: true\nuse_wandb:\n")
    config = values_of(["--config", str(path)])
    assert (config.policy_optimizer.learning_rate, config.policy_optimizer.adam_betas) == (
        5e-7,
        (0.9, 0.99),
    )
    assert config.bf16
    assert config.use_wandb == ""


def test_a_switch_of_a_file_can_be_turned_off(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("packing_samples = true\ngradient_checkpointing = false\n")
    config = values_of(["--config", str(path), "--packing_samples=false"])
    assert not config.packing_samples
    assert not config.gradient_checkpointing


def test_values_may_follow_an_equals_sign() -> None:
    config = values_of(["--reward_clip_range=-5,5", "--gamma=0.9"])
    assert (config.advantage.reward_clip_range, config.advantage.gamma) == ((-5, 5), 0.9)


def test_the_other_project_s_words_for_choices_are_understood() -> None:
    assert values_of(["--actor.loss_agg_mode", "seq-mean-token-mean"]).loss.loss_aggregation == (
        "sequence"
    )


def test_one_bound_of_a_correction_is_the_upper_one(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, is_correction_level="token", is_correction_threshold=2)
    assert config.correction.threshold == (0.0, 2.0)


def test_flags_that_stand_for_others_are_folded_into_them(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, bf16=True, flash_attn=True, max_len=10)
    assert config.param_dtype == "bf16"
    assert config.attn_implementation == "flash_attention_2"
    assert config.prompt_max_len == 10 - config.sampling.max_new_tokens


def test_a_flag_given_twice_is_a_fault_whatever_its_values() -> None:
    told = reading(["--gamma", "0.5", "--gamma", "0.9", "--seed", "1", "--train.seed", "1"])
    assert faults_of(told) == [
        "--gamma: is given twice. Give it once",
        "--train.seed: --seed says the same. Give one of the two",
    ]


def test_a_flag_given_in_two_files_has_the_later_ones_value(tmp_path: Path) -> None:
    for name, gamma in (("a", "0.5"), ("b", "0.9")):
        (tmp_path / f"{name}.yaml").write_text(f"gamma: {gamma}\n")
    files = [word for name in "ab" for word in ("--config", str(tmp_path / f"{name}.yaml"))]
    told = reading(files)
    assert (told.config.advantage.gamma, faults_of(told)) == (0.9, [])
    assert told.warnings == (
        f"{tmp_path}/a.yaml: gamma has no effect: {tmp_path}/b.yaml: gamma says the same",
    )


def test_what_a_launcher_adds_counts_whatever_was_given() -> None:
    told = reading(["--gamma", "0.5", "--train.seed", "1", "--", "--gamma", "0.9", "--seed", "2"])
    assert (told.config.advantage.gamma, told.config.train.seed) == (0.9, 2)
    assert (faults_of(told), told.warnings) == ([], ())
