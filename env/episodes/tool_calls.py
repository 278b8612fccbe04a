"""Reads tool calls in what a policy wrote, in the formats of three families of models.

    hermes    <tool_call>{"name": …, "arguments": {…}}</tool_call>          Hermes, Qwen
    llama3    {"name": …, "parameters": {…}}, several with `;` between      Llama 3
    mistral   [TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}]          Mistral
              [TOOL_CALLS]name[ARGS]{…} or [TOOL_CALLS]name{…}              newer Mistral

A call that cannot be read becomes a ToolCall with an error, so that the policy gets an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from env.episodes.types import ToolCall

HERMES = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
END_OF_REPLY = re.compile(r"(?:<\|(?:eot_id|eom_id|end_of_text|eot|eom)\|>\s*)+\Z")
PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"
NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*(?=\{)")
END_OF_SEQUENCE = "</s>"
ID = re.compile(r"[A-Za-z0-9]{9}")
"""Ids that are kept. Mistral's templates refuse all others, and the answers to their calls."""
DECODER = json.JSONDecoder(strict=False)  # models write line breaks inside strings


class Family(StrEnum):
    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"


def family_of(template: str) -> Family:
    """Return the format that a chat template asks for; Hermes if it shows none of the formats."""
    if TOOL_CALLS in template or "[AVAILABLE_TOOLS]" in template:
        return Family.MISTRAL
    if "<tool_call>" not in template and "<|start_header_id|>" in template:
        return Family.LLAMA3
    return Family.HERMES


def parse(text: str, family: Family) -> tuple[ToolCall, ...]:
    """Return the tool calls in `text`, which has its special tokens, in order."""
    calls = enumerate(READERS[family](text), 1)
    return tuple(_call(found, f"call{number:05d}") for number, found in calls)


Found = Mapping[str, Any] | str
"""A call as JSON, or the reason why it cannot be read."""


def _hermes(text: str) -> Iterator[Found]:
    for match in HERMES.finditer(text):
        inside, end = match.groups()
        yield _json(inside) if end else "</tool_call> is missing"


def _llama3(text: str) -> Iterator[Found]:
    tagged = PYTHON_TAG in text
    rest = END_OF_REPLY.sub("", text.rpartition(PYTHON_TAG)[2]).strip()
    if not tagged and not (rest.startswith("{") and '"name"' in rest):
        return
    while rest:
        try:
            found, end = DECODER.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            yield f"not JSON: {error}"
            return
        yield found
        rest = rest[end:].lstrip(" \n;")


def _mistral(text: str) -> Iterator[Found]:
    for part in text.removesuffix(END_OF_SEQUENCE).split(TOOL_CALLS)[1:]:
        named = NAMED.match(part)
        if named:
            arguments = _json(part[named.end() :])
            is_fault = isinstance(arguments, str)
            yield arguments if is_fault else {"name": named[1], "arguments": arguments}
            continue
        found = _json(part)
        yield from found if isinstance(found, list) else [found]


READERS: Mapping[Family, Callable[[str], Iterator[Found]]] = {
    Family.HERMES: _hermes,
    Family.LLAMA3: _llama3,
    Family.MISTRAL: _mistral,
}


def _json(text: str) -> Any:
    """Return the value that `text` begins with, or the reason why there is none."""
    try:
        return DECODER.raw_decode(text.strip())[0]
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"


def _call(found: Any, number: str) -> ToolCall:
    if isinstance(found, str):
        return ToolCall("", {}, number, error=found)
    if not isinstance(found, Mapping):
        return ToolCall("", {}, number, error="a call is a JSON object with name and arguments")
    if isinstance(found.get("function"), Mapping):
        found = {**found, **found["function"]}
    name, given = found.get("name"), found.get("id")
    identity = given if isinstance(given, str) and ID.fullmatch(given) else number
    if not isinstance(name, str) or not name:
        return ToolCall("", {}, identity, error="the call has no name")
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(arguments, Mapping):
        return ToolCall(name, {}, identity, error="the arguments are not a JSON object")
    return ToolCall(name, arguments, identity)
