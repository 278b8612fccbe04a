"""Messages of an environment: checked, and cut before a tokeniser has to read megabytes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import CoroutineType
from typing import Any

from env.data.rows import is_message, without_gaps
from env.episodes.chat import Chat
from env.episodes.types import Turn
from env.types import Messages, brief

CHARACTERS_OF_A_TOKEN = 32
"""A text is first cut to so many characters a token: tokenisers are slow with megabytes."""


class NoMessagesError(ValueError):
    """What an environment returned, and what is wanted in its place."""


def shortened(turn: Turn, chat: Chat, limit: int) -> tuple[list[Mapping[str, Any]], str, bool]:
    """Return a turn's messages and text, with at most `limit` tokens, and whether they are cut.

    Raises NoMessagesError.
    """
    if not isinstance(turn.text, str):
        raise NoMessagesError(f"a Turn whose text is {brief(turn.text)}")
    cuts = []

    def cut(text: str) -> str:
        nonlocal limit
        tokens = chat.encode(text[: CHARACTERS_OF_A_TOKEN * limit])
        is_cut = len(tokens) > limit or len(text) > CHARACTERS_OF_A_TOKEN * limit
        cuts.append(is_cut)
        shortened = chat.decode(tokens[:limit]) if is_cut else text
        limit = max(0, limit - len(tokens))
        return shortened

    def cut_part(part: Any) -> Any:
        is_text = isinstance(part, Mapping) and isinstance(part.get("text"), str)
        return {**part, "text": cut(part["text"])} if is_text else part

    def cut_content(content: Any) -> Any:
        if isinstance(content, list | tuple):
            return [cut_part(part) for part in content]
        return cut(content) if isinstance(content, str) else content

    text = cut(turn.text) if turn.text else ""
    messages: list[Mapping[str, Any]] = [
        {**message, "content": cut_content(message["content"])}
        for message in checked(turn.messages)
    ]
    return messages, text, any(cuts)


def without_beginning(messages: Messages, most: int) -> Sequence[Mapping[str, Any]]:
    """Return messages of which the last `most` characters of text are left."""

    def end(text: Any) -> Any:
        nonlocal most
        if not isinstance(text, str):
            return text
        kept = text[-most:] if most else ""
        most -= len(kept)
        return kept

    def end_of_part(part: Any) -> Any:
        is_text = isinstance(part, Mapping) and "text" in part
        return {**part, "text": end(part["text"])} if is_text else part

    def end_of_content(content: Any) -> Any:
        if isinstance(content, list | tuple):
            return [end_of_part(part) for part in reversed(content)][::-1]
        return end(content)

    return [
        {**message, "content": end_of_content(message["content"])} for message in reversed(messages)
    ][::-1]


def not_awaited(coroutine: CoroutineType[Any, Any, Any]) -> str:
    """Return what is wrong with a coroutine that nothing has awaited, and close it."""
    coroutine.close()
    return f"the coroutine {coroutine.__qualname__}: write `await` before its call"


def checked(found: Messages) -> Sequence[Mapping[str, Any]]:
    """Return messages. Raises NoMessagesError for anything else."""
    is_list = isinstance(found, Sequence) and not isinstance(found, str)
    for message in found if is_list else [found]:
        content = message.get("content") if isinstance(message, Mapping) else None
        if inspect.iscoroutine(content):
            raise NoMessagesError(f"a message whose content is {not_awaited(content)}")
        if not (is_list and is_message(message)):
            raise NoMessagesError(
                f"{brief(message)}, where a list of messages with role and content is wanted"
            )
    return without_gaps(found)
