"""Texts and tokens with tokenisers of many kinds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env.data.rows import without_gaps
from env.episodes.codec import TextCodec
from tests.support.chats import TEMPLATES
from tests.support.tokenisers import KINDS, TAGS, made

NAMES = sorted(KINDS)
CODECS = {name: TextCodec(made(name)) for name in NAMES}
TAGGED = "<think>ab, c .</think>\n<answer>5</answer>"


def ids(codec: TextCodec, *tokens: str) -> list[int]:
    found: list[int] = codec.tokenizer.convert_tokens_to_ids(list(tokens))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_are_words_and_the_end_is_none(name: str) -> None:
    codec = CODECS[name]
    assert set(TAGS) <= set(codec.tokenizer.all_special_tokens) | set(
        codec.tokenizer.get_added_vocab()
    )
    tokens = codec.encode(TAGGED)
    shown = codec.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
    assert shown.replace(" ", "") == TAGGED.replace(" ", "")
    assert codec.decode(tokens) == shown
    assert codec.decode([*tokens, codec.tokenizer.eos_token_id]) == shown


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_bos_are_no_words(name: str) -> None:
    codec, kind = CODECS[name], KINDS[name]
    tokens = codec.encode("ab")
    behind = [
        codec.tokenizer.eos_token_id,
        *([codec.tokenizer.pad_token_id] * 3 if kind.pad else []),
    ]
    before = ids(codec, *([kind.bos] if kind.bos and kind.bos != kind.end else []))
    assert codec.decode([*before, *tokens, *behind]) == "ab"


@pytest.mark.parametrize("name", NAMES)
def test_an_end_inside_a_text_stays(name: str) -> None:
    """As in an episode of several turns; so it does where padding and BOS are the same token."""
    codec, end = CODECS[name], KINDS[name].end
    parts = [codec.encode("ab"), ids(codec, end), codec.encode("cd"), ids(codec, end)]
    shown = codec.decode([token for part in parts for token in part])
    assert shown.replace(" ", "") == f"ab{end}cd"


def test_every_end_token_of_the_model_is_left_out_at_the_end() -> None:
    tokenizer = made("llama3")
    codec = TextCodec(tokenizer, tokenizer.convert_tokens_to_ids(["<|eom_id|>"]))
    call = codec.encode('<|python_tag|>{"name": "f"}<|eom_id|>')
    assert codec.decode(call) == '<|python_tag|>{"name": "f"}'
    assert codec.decode([*call, *codec.encode("<|eot_id|>")]) == codec.tokenizer.decode(call)


@pytest.mark.parametrize("name", NAMES)
@given(
    before=st.text("ab .,<é漢", min_size=1, max_size=6),
    after=st.lists(st.sampled_from([*TAGS, "a", "b", " ", ".", ",", "é", "漢", "\n"]), max_size=8),
)
def test_a_text_and_what_follows_it_are_the_whole_text(
    name: str, before: str, after: list[str]
) -> None:
    """Spaces at the seam and before full stops stay."""
    codec = CODECS[name]
    first, rest = codec.begin(before), codec.encode("".join(after))
    whole = codec.decode([*first, *rest])
    assert codec.decode(first) + codec.decode(rest, follows=True) == whole


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.integers(0, 2**16), max_size=12))
def test_any_tokens_have_a_text(name: str, drawn: list[int]) -> None:
    """Half characters too."""
    codec = CODECS[name]
    codec.decode([one % len(codec.tokenizer) for one in drawn], follows=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_begins_as_the_tokeniser_begins_texts(name: str) -> None:
    codec, kind = CODECS[name], KINDS[name]
    first = ids(codec, kind.bos) if kind.adds_bos and kind.bos else []
    assert codec.begin("ab c") == [*first, *codec.encode("ab c")]
    if not kind.adds_end:
        assert codec.begin("ab c") == codec.tokenizer("ab c")["input_ids"]


@pytest.mark.parametrize("name", [name for name in NAMES if KINDS[name].bos])
def test_a_text_that_begins_with_bos_gets_no_second(name: str) -> None:
    codec, kind = CODECS[name], KINDS[name]
    assert kind.bos
    tokens = codec.begin(f"{kind.bos}ab")
    assert tokens == codec.encode(f"{kind.bos}ab")
    assert tokens.count(codec.tokenizer.bos_token_id) == 1


TAKE_EMPTY = (
    *("qwen2_5", "qwen2_5_vl", "qwen3", "qwen3_vl", "qwen3_5_think", "llama3", "llama3_1"),
    *("glm4moe", "gptoss", "cohere2", "lfm2", "lfm2_2_5", "phi3", "nemotron_3_nano", "gemma4"),
)
TAKE_NONE = ("deepseek_r1_distill", "deepseekv3")


@pytest.mark.parametrize("family", [*TAKE_EMPTY, *TAKE_NONE])
@pytest.mark.parametrize("given", [{}, {"content": None}], ids=["missing", "null"])
@pytest.mark.parametrize("arguments", [{"a": "é"}, '{"a": "é"}'], ids=["object", "text"])
def test_tool_calls_are_rendered_in_the_form_that_the_template_reads(
    family: str, given: dict[str, Any], arguments: Any
) -> None:
    """OpenAI's have null as content, and arguments in JSON: most templates would spoil both."""
    codec = TextCodec(made("llama3", (TEMPLATES / f"{family}.jinja").read_text()))

    def chat(arguments: Any, **given: Any) -> list[dict[str, Any]]:
        call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": arguments}}
        asked = {"role": "user", "content": "2+3?"}
        return [asked, {"role": "assistant", "tool_calls": [call], **given}]

    form = ('{"a": "é"}', None) if family in TAKE_NONE else ({"a": "é"}, "")
    shown = codec.render(without_gaps(chat(arguments, **given)))
    expected = chat(form[0], content=form[1])
    assert shown == codec.tokenizer.apply_chat_template(expected, tokenize=False)
