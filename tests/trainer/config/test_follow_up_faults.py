"""A fault makes no others: what is wrong only because of it is not told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.repository import ROOT
from trainer.config.parse import parse_all

FLAGS = (
    *("--pretrain", "owner/model", "--prompt_data", "owner/data", "--run_dir", "run"),
    *("--remote_rm_url", "gsm8k", "--rollout_batch_size", "8"),
)


def faults(*words: str) -> list[str]:
    return [str(fault) for fault in parse_all(words).faults]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--n_samples_per_prompt", "two"),
        ("--n_samples_per_prompt", "2.5"),
        ("--n_samples_per_promt", "2"),
    ],
)
def test_the_default_of_a_flag_at_fault_makes_no_fault_of_another(wrong: tuple[str, str]) -> None:
    assert len(faults(*FLAGS)) == 1  # 128 does not divide the 8 samples
    (told,) = faults(*FLAGS, *wrong)
    assert wrong[0] in told


def test_a_misspelt_flag_is_not_missing_too() -> None:
    words = ["--pretrian" if word == "--pretrain" else word for word in FLAGS[:8]]
    (told,) = faults(*words)
    assert "--pretrian: unknown flag. Did you mean --pretrain?" in told


@pytest.mark.parametrize("text", ["a: b: c\n", None])
def test_a_file_that_cannot_be_read_is_the_only_fault(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "run.yaml"
    if text is not None:
        file.write_text(text)
    (told,) = faults("--config", str(file))
    assert told.startswith("--config: ")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("sums.yaml", "rollcall plan pipeline"),
        ("pipeline.yaml", "rollcall plan pipeline"),
        ("dpo.yaml", "rollcall dpo --config"),
    ],
)
def test_a_file_of_another_command_names_the_command(name: str, command: str) -> None:
    (told,) = faults("--config", str(ROOT / "examples" / name))
    assert f"{command} {ROOT / 'examples' / name}" in told


def test_a_word_behind_a_flag_is_told_with_the_flag() -> None:
    (told,) = faults(*FLAGS[:8], "--use_kl_loss", "maybe")
    assert told.startswith("'maybe': belongs to no flag: --use_kl_loss takes true or false")
    (told,) = faults(*FLAGS[:8], "--max_steps", "1", "2")
    assert told.startswith("'2': belongs to no flag: --max_steps takes one value")
