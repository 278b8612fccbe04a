"""What the rows of the data show before the first step."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.tiny_run import Tiny, events
from trainer.config.installed import data_warnings
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
