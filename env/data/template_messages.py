"""Messages in the form that a chat template reads: what data leave open, templates differ about."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from env.types import Messages

ASKS_FOR_NONE = re.compile(r"""content['"]?\]?\s+is\s+(not\s+)?none""")
"""Part of a template that takes null as the content of tool calls, such as DeepSeek's."""
JOINS_ARGUMENTS = re.compile(
    r"""arguments['"]?\]?\s*[+~]|[+~]\s*[\w.'"\[\]]*arguments['"]?\]?\s*[-}+~]"""
)
"""Part of a template that takes arguments as a text, such as DeepSeek's."""


def fitted(messages: Messages, template: str) -> list[dict[str, Any]]:
    """Return messages that a chat template can read.

    OpenAI's tool calls have null as their content, and arguments that are JSON text. Most templates
    write "None" for the one or fail, and would write the other as JSON once more.
    """
    content = None if ASKS_FOR_NONE.search(template) else ""
    as_text = JOINS_ARGUMENTS.search(template) is not None
    found = []
    for message in messages:
        turn = dict(message)
        if turn.get("content") is None:
            turn["content"] = content
        if isinstance(calls := turn.get("tool_calls"), list):
            turn["tool_calls"] = [_with_arguments(call, as_text=as_text) for call in calls]
        found.append(turn)
    return found


def _with_arguments(call: Any, *, as_text: bool) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(function := call.get("function"), Mapping):
        return {**call, "function": _with_arguments(function, as_text=as_text)}
    given = call.get("arguments")
    if as_text and isinstance(given, Mapping):
        return {**call, "arguments": json.dumps(given, ensure_ascii=False)}
    if isinstance(given, str) and not as_text and (parsed := _object(given)) is not None:
        return {**call, "arguments": parsed}
    return call


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a text is; None if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
