"""Columns that no flag names: the data's only usual ones, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from env.data.columns import GSM8K
from trainer.config import data_columns
from trainer.config.config import Config
from trainer.config.job_checks import data_faults
from trainer.config.parse import parse_all

MODEL = ("--pretrain", "owner/model", "--run_dir", "run")
REWARD = ("--remote_rm_url", "gsm8k")


def read(*words: str) -> Config:
    return parse_all([*MODEL, *words]).config


def rows(directory: Path, *names: str) -> str:
    path = directory / f"{'-'.join(names)}.jsonl"
    path.write_text(json.dumps(dict.fromkeys(names, "#### 2")) + "\n")
    return str(path)


@pytest.mark.parametrize(
    "pair", [("prompt", "answer"), ("question", "answer"), ("problem", "label")]
)
def test_the_only_usual_columns_count_and_are_told(tmp_path: Path, pair: tuple[str, str]) -> None:
    config = read("--prompt_data", rows(tmp_path, "id", *pair), *REWARD)
    assert (config.input_key, config.label_key) == pair
    assert [note.partition(":")[0] for note in config.notes] == [
        f"--input_key {pair[0]}",
        f"--label_key {pair[1]}",
    ]
    assert data_faults(config) == []


@pytest.mark.parametrize(
    ("names", "words", "keys"),
    [
        (("input", "question", "answer"), (), ("input", None)),  # OpenRLHF's default
        (("prompt", "question", "answer"), (), ("input", None)),  # one of two
        (("text", "answer"), (), ("input", None)),  # no usual name
        (("question", "answer"), ("--input_key", "question"), ("question", None)),
        (("question", "answer", "label"), (), ("question", None)),  # one of two
        (("question", "answer", "label"), ("--label_key", "label"), ("question", "label")),
    ],
)
def test_what_is_named_or_in_doubt_stays(
    tmp_path: Path, names: tuple[str, ...], words: tuple[str, ...], keys: tuple[str, str | None]
) -> None:
    config = read("--prompt_data", rows(tmp_path, *names), *REWARD, *words)
    assert (config.input_key, config.label_key) == keys


def test_no_label_is_chosen_if_nothing_reads_it(tmp_path: Path) -> None:
    data = rows(tmp_path, "question", "answer")
    config = read("--prompt_data", data, "--reward_pretrain", "owner/judge")
    assert (config.input_key, config.label_key) == ("question", None)


def test_all_data_sets_have_the_column(tmp_path: Path) -> None:
    held = rows(tmp_path, "prompt", "answer")
    both = ("--prompt_data", rows(tmp_path, "question", "answer"), "--eval_dataset", held)
    assert read(*both, *REWARD).input_key == "input"


def test_a_known_data_set_of_the_hub_needs_no_flag() -> None:
    config = read("--prompt_data", f"{GSM8K}:main", *REWARD)
    assert (config.input_key, config.label_key) == ("question", "answer")
    assert [*data_columns.unseen(config)] == []


def test_another_of_the_hub_is_decided_when_it_is_there() -> None:
    config = read("--prompt_data", "owner/data", *REWARD)
    (said,) = data_columns.unseen(config)
    assert "owner/data" in said
    assert "--input_key names another" in said
    found = data_columns.chosen(config, ("problem", "solution"))
    assert (found.input_key, found.label_key) == ("problem", "solution")
