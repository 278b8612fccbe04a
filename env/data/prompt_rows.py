"""Rows → prompts: texts or messages, with a label and images."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env.data.rows import (
    IMAGES,
    VIDEOS,
    PromptError,
    Row,
    RowError,
    chat_of_text,
    is_chat,
    without_gaps,
)
from env.images.rows import ImageColumn, ImageRowError, with_images
from env.types import Prompt

Render = Callable[[list[dict[str, Any]]], str]
"""A chat template: messages with `role` and `content` to the text that the policy continues."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """How rows become prompts."""

    keys: Sequence[str]
    """Column of the text or the messages, and of the label if rows have one."""
    template: str | None
    """Text with one `{}` for the row's text."""
    render: Render | None
    images: ImageColumn | None
    """How rows have their images; None: images are refused."""
    directory: Path
    """Where relative paths of images begin."""

    def prompt(self, index: int, row: Row) -> Prompt:
        """Return the prompt of a row. Raises PromptError."""
        _refuse_images(row, self.keys, self.images)
        key = self.keys[0]
        label = _label(row, self.keys[1]) if len(self.keys) > 1 else None
        read = _read(row, key, self.template)
        if isinstance(read, str) and self.render is None:
            return Prompt(index, read, label)
        if self.render is None:
            raise PromptError(f"{row.where}: '{key}' is a chat: give --apply_chat_template")
        messages = [{"role": "user", "content": read}] if isinstance(read, str) else read
        if self.images is None:
            _refuse_parts(row, key, messages)
        else:
            try:
                column = row.fields.get(self.images.key)
                messages = with_images(messages, column, self.images, self.directory)
            except ImageRowError as error:
                raise PromptError(f"{row.where}: {error}") from None
        try:
            text = self.render(messages)
        except Exception as error:  # templates raise errors of their own, and any of Python's
            raise PromptError(
                f"{row.where}: the chat template refuses the messages of '{key}': {error}"
            ) from error
        return Prompt(index, text, label, messages)


def _read(row: Row, key: str, template: str | None) -> str | list[dict[str, Any]]:
    """The text, or the messages, that the row holds: a list of them, or its JSON text."""
    value = row.value(key)
    if isinstance(value, str) and (chat := chat_of_text(value)):
        return without_gaps(chat)
    if isinstance(value, str) and value:
        return template.format(value) if template else value
    if not is_chat(value):
        raise RowError(
            f"{row.where}: '{key}' holds {_shown(value)}, where a text or messages are wanted"
        )
    return without_gaps(value)


def _refuse_parts(row: Row, key: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise PromptError if messages have anything but texts."""
    for kind in _kinds(messages):
        if kind != "text":
            raise PromptError(
                f"{row.where}: a message of '{key}' has a part of type '{kind}', and the model "
                "takes only text. Give a model of images and text, or keep the text of the row"
            )


def _refuse_images(row: Row, keys: Sequence[str], images: ImageColumn | None) -> None:
    """Raise PromptError for images and videos that the model would not see."""
    for column in IMAGES:
        if column in keys or not row.fields.get(column):
            continue
        if images is None or column in VIDEOS:
            what = "only text and images are" if images else "only text is"
            raise PromptError(
                f"{row.where}: has something in the column '{column}', and {what} trained. "
                "Leave the row out, or drop the column where the text does without it"
            )
        if column != images.key:
            raise PromptError(
                f"{row.where}: has something in the column '{column}', and --image_key is "
                f"'{images.key}'. Give --image_key {column}, or drop the column"
            )


def _kinds(messages: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """What the parts of messages are, where those have parts."""
    for turn in messages:
        if isinstance(turn["content"], list):
            yield from (p.get("type") if isinstance(p, dict) else p for p in turn["content"])


def _label(row: Row, key: str) -> str:
    value = row.value(key)
    if value is None:
        raise RowError(f"{row.where}: '{key}' is null, where a label is wanted")
    if isinstance(value, float) and not math.isfinite(value):
        raise RowError(f"{row.where}: '{key}' is {value}, where a label is wanted")
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except TypeError:  # a decimal, a date, bytes: each has several spellings
        raise RowError(
            f"{row.where}: '{key}' holds {_shown(value)} of type {type(value).__name__}, where a "
            "text, a number or what else JSON has is wanted: save the column as text"
        ) from None


def check_template(template: str | None) -> None:
    """Raise PromptError unless a template has one place for the text; "" is none."""
    if not template:
        return
    try:
        holds_text = "text" in template.format("text")
    except (IndexError, KeyError, ValueError):
        holds_text = False
    if not holds_text or template.format("") == template:
        raise PromptError(f"input_template {template!r} wants one {{}} for the prompt's text")


def _shown(value: Any) -> str:
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
