"""Tool calls of three families of models, well-formed and malformed."""

from __future__ import annotations

import json

import pytest

from env.episodes.tool_calls import Family, family_of, parse
from tests.support.chats import END, tokenizer

CALL = ("add", {"a": 1, "b": 2})
WELL_FORMED = {
    Family.HERMES: [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>',
        'I add.<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>',
    ],
    Family.LLAMA3: [
        '{"name": "add", "parameters": {"a": 1, "b": 2}}<|eot_id|>',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}<|eom_id|>',
        '{"type": "function", "name": "add", "parameters": {"a": 1, "b": 2}}',
    ],
    Family.MISTRAL: [
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}]</s>',
        '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}</s>',
        '[TOOL_CALLS]add{"a": 1, "b": 2}</s>',
    ],
}
TWO = {
    Family.HERMES: '<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "g"}</tool_call>',
    Family.LLAMA3: '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
    Family.MISTRAL: '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g"}]',
}
MALFORMED = [
    pytest.param(
        Family.LLAMA3, '{"name": "f", "parameters": ' + "[" * 5_000, "not JSON", id="deep Llama"
    ),
    pytest.param(
        Family.HERMES, f"<tool_call>{'[' * 5_000}</tool_call>", "not JSON", id="deep Hermes"
    ),
    (Family.HERMES, '<tool_call>{"name": "add", "arguments": {</tool_call>', "not JSON"),
    (Family.HERMES, '<tool_call>{"name": "add"}', "</tool_call> is missing"),
    (Family.HERMES, "<tool_call>[1]</tool_call>", "JSON object"),
    (Family.HERMES, '<tool_call>{"arguments": {}}</tool_call>', "no name"),
    (Family.HERMES, '<tool_call>{"name": "add", "arguments": 3}</tool_call>', "not a JSON object"),
    (Family.HERMES, "<tool_call>" + "[" * 100_000 + "</tool_call>", "not JSON"),
    (Family.LLAMA3, "<|python_tag|>search.call(query='x')", "not JSON"),
    (Family.LLAMA3, '{"name": "add", "parameters": ', "not JSON"),
    (Family.MISTRAL, "[TOOL_CALLS] [{]</s>", "not JSON"),
    (Family.MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": </s>', "not JSON"),
]


@pytest.mark.parametrize(
    ("family", "text"), [(family, text) for family, texts in WELL_FORMED.items() for text in texts]
)
def test_a_call(family: Family, text: str) -> None:
    (call,) = parse(text, family)
    assert (call.name, call.arguments) == CALL
    assert not call.error
    assert len(call.id) == 9  # Mistral's templates refuse other lengths


@pytest.mark.parametrize(
    ("family", "frame"),
    [
        (Family.HERMES, "<tool_call>{}</tool_call><|im_end|>"),
        (Family.LLAMA3, "<|python_tag|>{}<|eom_id|>"),
        (Family.MISTRAL, "[TOOL_CALLS][{}]</s>"),
    ],
)
def test_an_argument_keeps_what_looks_like_a_special_token(family: Family, frame: str) -> None:
    given = {"code": "<|fim_prefix|>f<|endoftext|>"}
    (call,) = parse(frame.format(json.dumps({"name": "run", "arguments": given})), family)
    assert call.arguments == given


@pytest.mark.parametrize("family", list(Family))
def test_several_calls(family: Family) -> None:
    calls = parse(TWO[family], family)
    assert [call.name for call in calls] == ["f", "g"]
    assert len({call.id for call in calls}) == 2


@pytest.mark.parametrize(("family", "text", "error"), MALFORMED)
def test_a_malformed_call_is_a_call_with_an_error(family: Family, text: str, error: str) -> None:
    (call,) = parse(text, family)
    assert error in call.error


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("text", ["The answer is 5.", "", '{"answer": 5}', "{"])
def test_a_reply_without_a_call(family: Family, text: str) -> None:
    assert parse(text, family) == ()


def test_the_id_that_the_policy_wrote_is_kept() -> None:
    (call,) = parse('[TOOL_CALLS][{"name": "f", "id": "abcDEF123"}]', Family.MISTRAL)
    assert call.id == "abcDEF123"


@pytest.mark.parametrize("given", ["1", "", "call_0001", 5, None, ["abcDEF123"]])
def test_an_id_that_templates_refuse_is_replaced(given: object) -> None:
    text = "[TOOL_CALLS]" + json.dumps([{"name": "f", "id": given}])
    (call,) = parse(text, Family.MISTRAL)
    assert (call.id, call.error) == ("call00001", "")


def test_a_family_is_known_by_its_template() -> None:
    found = {name: family_of(tokenizer(name).chat_template) for name in END}
    assert found == {
        "qwen2_5": Family.HERMES,
        "qwen3": Family.HERMES,
        "llama3_1": Family.LLAMA3,
        "mistral": Family.MISTRAL,
    }
