"""Chats as tokens: the first context once, then only what is new.

What the policy wrote is never tokenised again, because its tokens need not be those of the
tokeniser: the trainer would then learn from tokens that the policy did not choose. The tokens of
new messages come from a chat of two dummy messages: the template renders it with the new messages
behind it, and everything after the dummy reply is the end of the policy's turn, the template's own
separators, the new messages and the beginning of the next reply.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from env.episodes.codec import TextCodec
from env.episodes.tool_calls import family_of, parse
from env.episodes.types import ToolCall, ToolSpec
from env.images.rows import references
from env.images.types import Image, PlacedImage
from env.types import Messages

REPLY = "ROLLCALLREPLY"
"""Content of the dummy reply. A template may strip it, and must not change it."""
BASE = ({"role": "user", "content": "task"}, {"role": "assistant", "content": REPLY})


class ChatError(ValueError):
    """A chat template that cannot be used; the message says why."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}. {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
        """What to do; empty if `problem` says all."""


class Chat(Protocol):
    """Converts messages to tokens, and tokens to text."""

    async def images(self, messages: Messages) -> tuple[Image, ...]:
        """Return the images of messages, in order. Raises ImageError, OSError."""

    def begin(
        self, messages: Messages, tools: Sequence[ToolSpec], images: Sequence[Image] = ()
    ) -> list[int]:
        """Return the tokens of a chat, up to the beginning of the policy's reply."""

    def follow(self, messages: Messages, *, ended: bool, images: Sequence[Image] = ()) -> list[int]:
        """Return the tokens between a reply and the next. `ended`: the reply has its end token."""

    def placed(self, tokens: Sequence[int], images: Sequence[Image]) -> list[PlacedImage]:
        """Return the places of images in the tokens of `begin` or `follow`."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text that continues another."""

    def decode(self, tokens: Sequence[int], *, follows: bool = False) -> str:
        """Return a text, as `TextCodec` does. `follows`: it continues another."""

    def tool_calls(self, tokens: Sequence[int]) -> tuple[ToolCall, ...]:
        """Return the tool calls of a reply."""


class PlainChat:
    """Messages without a template: their contents, one after the other."""

    def __init__(self, tokenizer: Any, ends: Collection[int] = ()) -> None:
        """`ends`: the model's end tokens beside the tokeniser's own."""
        self._tokenizer = tokenizer
        self._codec = TextCodec(tokenizer, ends)
        self._family = family_of("")

    async def images(self, messages: Messages) -> tuple[Image, ...]:
        if next(references(messages), None) is not None:
            raise ChatError("the messages have images, and the model takes only text")
        return ()

    def begin(
        self, messages: Messages, tools: Sequence[ToolSpec], images: Sequence[Image] = ()
    ) -> list[int]:
        if tools and getattr(self._tokenizer, "chat_template", True):
            problem = "the environment has tools, and only a chat template shows them to the policy"
            raise ChatError(problem, "Give --apply_chat_template")
        if tools:
            raise ChatError(
                "the model's tokeniser has no chat template, which the environment's tools need",
                "Give --pretrain a model whose tokeniser has one, and --apply_chat_template",
            )
        return self._codec.begin(_joined(messages))

    def follow(self, messages: Messages, *, ended: bool, images: Sequence[Image] = ()) -> list[int]:
        return self.encode(_joined(messages))

    def placed(self, tokens: Sequence[int], images: Sequence[Image]) -> list[PlacedImage]:
        return []

    def encode(self, text: str) -> list[int]:
        return self._codec.encode(text)

    def decode(self, tokens: Sequence[int], *, follows: bool = False) -> str:
        return self._codec.decode(tokens, follows=follows)

    def tool_calls(self, tokens: Sequence[int]) -> tuple[ToolCall, ...]:
        return parse(self.decode(tokens), self._family)


class TemplateChat(PlainChat):
    """Messages in a tokeniser's chat template."""

    def __init__(self, tokenizer: Any, ends: Collection[int] = ()) -> None:
        super().__init__(tokenizer, ends)
        self._family = family_of(tokenizer.get_chat_template())
        self._special = _special(tokenizer)

    def begin(
        self, messages: Messages, tools: Sequence[ToolSpec], images: Sequence[Image] = ()
    ) -> list[int]:
        rendered = self._render(messages, tools)
        if tools and rendered == self._render(messages, ()):
            raise ChatError(
                "the tokeniser's chat template does not show tools to the policy",
                "Take a model whose template does, or describe the tools in the messages",
            )
        return self.encode(rendered)

    def follow(self, messages: Messages, *, ended: bool, images: Sequence[Image] = ()) -> list[int]:
        _, found, after = self._render([*BASE, *messages], ()).partition(REPLY)
        if not found:
            raise ChatError(
                "the tokeniser's chat template leaves out earlier replies of the policy"
            )
        tokens = self.encode(after)
        has_end = bool(tokens) and tokens[0] in self._special
        return tokens[1:] if ended and has_end else tokens

    def decode(self, tokens: Sequence[int], *, follows: bool = False) -> str:
        """Return a text. A reply is a message of its own, which begins without a space."""
        return self._codec.decode(tokens)

    def _render(self, messages: Messages, tools: Sequence[ToolSpec]) -> str:
        return self._codec.render(messages, tools=list(tools) or None, add_generation_prompt=True)


def _special(tokenizer: Any) -> frozenset[int]:
    """Return the special tokens, also those that the tokeniser has no name for.

    Phi's `<|end|>` and Gemma 3's `<end_of_turn>` are such tokens, and end a reply.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).items()
    return frozenset([*tokenizer.all_special_ids, *(row for row, own in added if own.special)])


def _joined(messages: Messages) -> str:
    return "".join(_content(message) for message in messages)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
