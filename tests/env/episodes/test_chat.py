"""Tokens of chats: the first context, and only what is new after a reply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from env.episodes.chat import ChatError, PlainChat, TemplateChat
from env.types import Messages
from tests.support.chats import END, tokenizer

FAMILIES = sorted(END)
TASK = [{"role": "user", "content": "What is 2+3?"}]
ANSWER = [{"role": "tool", "name": "add", "tool_call_id": "call00001", "content": "5"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


def whole(tokens: Any, messages: Messages) -> str:
    """The chat as the template renders it from the beginning."""
    text: str = tokens.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=True
    )
    return text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("role", ["tool", "user"])
@pytest.mark.parametrize("ended", [True, False])
def test_new_messages_are_rendered_as_in_the_whole_chat(
    family: str, role: str, ended: bool
) -> None:
    tokens = tokenizer(family)
    chat = TemplateChat(tokens)
    new = ANSWER if role == "tool" else [{"role": "user", "content": "And 3+4?"}]
    reply = "It is 5"
    begun = chat.begin(TASK, ())
    written = chat.encode(reply) + [tokens.eos_token_id] * ended
    followed = chat.follow(new, ended=ended)

    everything = [*TASK, {"role": "assistant", "content": reply}, *new]
    expected = whole(tokens, everything)
    if family == "qwen3":  # shows thoughts after the last task alone, and begins an empty one
        expected = expected.replace("<think>\n\n</think>\n\n", "")
    shown = tokens.decode([*begun, *written, *followed])
    if family == "mistral":  # the reply follows a space there, which the policy writes itself
        expected = expected.replace("[/INST] It", "[/INST]It")
    assert shown == expected


def test_an_end_token_without_a_name_is_not_written_twice(tmp_path: Path) -> None:
    """As of Phi, whose tokeniser names `<|endoftext|>` alone, and whose replies end by <|end|>."""
    tokens = tokenizer("qwen2_5")
    end = tokens.eos_token_id
    tokens.save_pretrained(tmp_path)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (file := tmp_path / name).exists():
            row = json.loads(file.read_text())
            for key in ("additional_special_tokens", "extra_special_tokens"):
                row.pop(key, None)
            file.write_text(json.dumps(row | {"eos_token": "<|endoftext|>"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert end not in loaded.all_special_ids
    new = [{"role": "user", "content": "And 3+4?"}]
    assert end not in TemplateChat(loaded).follow(new, ended=True)[:1]
    assert TemplateChat(loaded).follow(new, ended=False)[:1] == [end]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_context_is_what_the_template_renders(family: str) -> None:
    tokens = tokenizer(family)
    begun = TemplateChat(tokens).begin(TASK, [])
    assert begun == tokens(whole(tokens, TASK), add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_tools_are_in_the_first_context(family: str) -> None:
    tokens = tokenizer(family)
    shown = tokens.decode(TemplateChat(tokens).begin(TASK, [ADD]))
    assert "Add two numbers." in shown


def test_a_template_without_tools_is_refused() -> None:
    tokens = tokenizer("qwen2_5")
    tokens.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(ChatError, match="does not show tools"):
        TemplateChat(tokens).begin(TASK, [ADD])
    with pytest.raises(ChatError, match="--apply_chat_template"):
        PlainChat(tokens).begin(TASK, [ADD])
    with pytest.raises(ChatError, match=r"no chat template, which .*\. Give --pretrain"):
        PlainChat(tokenizer(None)).begin(TASK, [ADD])


def test_a_template_that_hides_earlier_replies_is_refused() -> None:
    tokens = tokenizer("qwen2_5")
    tokens.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(ChatError, match="earlier replies"):
        TemplateChat(tokens).follow(ANSWER, ended=True)


def test_without_a_template_contents_follow_each_other() -> None:
    tokens = tokenizer(None)
    chat = PlainChat(tokens)
    assert chat.decode(chat.begin(TASK, ())) == "What is 2+3?"
    parts = [{"role": "user", "content": [{"type": "text", "text": " yes"}]}]
    assert chat.decode(chat.follow(parts, ended=True)) == " yes"
