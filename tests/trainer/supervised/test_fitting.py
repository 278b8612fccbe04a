"""Rows as a tokeniser and its chat template take them: one BOS, and no content that is null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from contract.exit_codes import ExitCode
from env.prepare.model import tiny_config
from env.prepare.tiny_model import TinyModel
from tests.support.tokenisers import made
from trainer.supervised import data
from trainer.supervised.__main__ import main

BOS = "<|begin_of_text|>"
STAGES = {
    "sft": {"prompt": f"{BOS}1+2=", "completion": "3"},
    "rm": {"chosen": f"{BOS}1+2=3", "rejected": f"{BOS}1+2=5"},
    "dpo": {"prompt": f"{BOS}1+2=", "chosen": "3", "rejected": "5"},
}


def test_tool_calls_without_content_are_an_empty_text_for_most_templates() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    turns = [{"role": "user", "content": "x"}, called]
    rows = data._made({"prompt": [turns, turns[:1]], "completion": [turns[:1], turns[:1]]})
    tokenizer = made("llama3", "{% for m in messages %}{{ m.content }}{% endfor %}")
    fitted = data.fitting(rows, tokenizer)
    assert [turn["content"] for turn in fitted[0]["prompt"]] == ["x", ""]
    assert fitted[0]["prompt"][1]["tool_calls"] == [call]
    assert fitted[1]["prompt"] == turns[:1]
    tokenizer.chat_template = "{% if messages[0].content is none %}{% endif %}"
    assert data.fitting(rows, tokenizer)[0]["prompt"] == turns
    tokenizer.chat_template = "{{ m['function']['arguments'] + '!' }}"
    (changed,) = data.fitting(rows, tokenizer)[0]["prompt"][1]["tool_calls"]
    assert changed["function"]["arguments"] == "{}"


@pytest.mark.parametrize("stage", STAGES)
def test_a_row_has_one_bos(stage: str, tmp_path: Path, trainers: list[Any]) -> None:
    tokenizer = made("llama3")
    tokenizer.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    config = tiny_config(TinyModel(hidden_size=16, layers=1, heads=2), len(tokenizer))
    config.eos_token_id = tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    row = STAGES[stage]
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row)}\n")
    argv = [stage, "--pretrain", tmp_path / "model", "--dataset", tmp_path / "rows.jsonl"]
    argv += ["--save_path", tmp_path / "out", "--max_steps", "1", "--train_batch_size", "2"]
    if "prompt" in row:
        argv += ["--prompt_key" if stage == "dpo" else "--input_key", "prompt"]
    argv += ["--output_key", "completion"] if stage == "sft" else []
    assert main(list(map(str, argv))) == ExitCode.FINISHED
    seen = trainers[0].train_dataset[0]
    tokens = seen.get("input_ids") or seen.get("prompt_ids") or seen["chosen_ids"]
    assert [at for at, token in enumerate(tokens) if token == tokenizer.bos_token_id] == [0]
