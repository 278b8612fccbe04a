"""What the rows of the data show before the first step."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from env.registry import reward_function
from tests.support.tiny_run import Tiny, events
from trainer.config.job_checks import data_warnings
from trainer.rollout import prompts as data
from trainer.training import run

ASKED = {"role": "user", "content": "1+1="}
ANSWERED = [ASKED, {"role": "assistant", "content": "2"}]
SAID = (
    "--prompt_data {}: the answer is in the prompt of 2 of 3 rows read: their last message is the "
    "assistant's. Leave it out, unless the policy is to continue it"
)


@pytest.fixture
def chatting(tiny: Tiny, tmp_path: Path) -> Tiny:
    """A model with a chat template, and rows of which two end with the answer."""
    model = tmp_path / "model"
    shutil.copytree(tiny.model, model)
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(model)
    rows = [{"prompt": chat, "answer": "2"} for chat in ([ASKED], ANSWERED, ANSWERED)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return replace(tiny, model=model, prompts=tmp_path / "rows.jsonl")


def test_an_answer_in_the_prompt_is_told_by_plan_and_by_the_run(
    chatting: Tiny, run_dir: Path
) -> None:
    config = chatting.config(run_dir, apply_chat_template=True)
    said = SAID.format(chatting.prompts)
    assert list(data_warnings(config)) == [said]
    config.files.root.mkdir(parents=True, exist_ok=True)
    run._check_first_rows(config, None, data.load(config))
    assert [event["sentence"] for event in events(config, "first-rows")] == [f"{said}."]


def test_texts_and_chats_that_end_with_a_question_are_told_nothing(
    chatting: Tiny, tiny: Tiny, run_dir: Path
) -> None:
    assert list(data_warnings(tiny.config(run_dir))) == []
    chatting.prompts.write_text(json.dumps({"prompt": [*ANSWERED, ASKED], "answer": "2"}))
    assert list(data_warnings(chatting.config(run_dir, apply_chat_template=True))) == []


def test_options_that_no_prompt_shows_are_told_by_plan_and_by_the_run(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    rows, row = tmp_path / "exam.jsonl", {"question": "1+1=?", "choices": ["1", "2 "], "answer": 1}
    flags = {"prompt_data": str(rows), "input_key": "question", "remote_rm_url": "choice"}
    rows.write_text(json.dumps(row))
    config = tiny.config(run_dir, **flags)
    said = (
        f"--prompt_data {rows}: the column `choices` is not in the prompt: the model does not see "
        "the options. Write them into the column of the prompts (docs/data-and-rewards.md, "
        "Multiple choice)"
    )
    assert list(data_warnings(config)) == [said]
    config.files.root.mkdir(parents=True, exist_ok=True)
    run._check_first_rows(config, None, data.load(config))
    assert [event["sentence"] for event in events(config, "first-rows")] == [f"{said}."]
    for other in (
        row | {"question": "1+1=? 1 or 2"},  # it shows them
        row | {"answer": "4"},  # it is the answer to another question
        {"question": "1+1=?", "answer": "B"},
    ):
        rows.write_text(json.dumps(other))
        assert list(data_warnings(config)) == []


def test_rows_whose_labels_cannot_be_read_are_told_before_the_first_step(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    labels = ["1", "2", "3", "4", *map(str, range(100)), "many", "5", "many", "nan"]
    rows = tmp_path / "labels.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": "1+1=", "answer": one}) for one in labels))
    config = tiny.config(run_dir, prompt_data=str(rows), remote_rm_url="gsm8k")
    config.files.root.mkdir(parents=True, exist_ok=True)
    run._check_first_rows(config, reward_function("gsm8k"), data.load(config))
    assert [event["sentence"] for event in events(config, "first-rows")] == [
        f"--remote_rm_url gsm8k cannot score 3 of 108 rows of {rows}; the first is row 105: "
        "no number in the label 'many'. Samples of such rows are left out of the training."
    ]


def test_labels_that_can_be_read_are_told_nothing(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, remote_rm_url="gsm8k")
    config.files.root.mkdir(parents=True, exist_ok=True)
    run._check_first_rows(config, reward_function("gsm8k"), data.load(config))
    assert events(config, "first-rows") == []
