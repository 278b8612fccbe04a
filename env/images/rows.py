"""Images of a row: parts of its messages, or a column beside its text.

In memory an image is a reference: a path, or a data URI with the bytes that the row itself has.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from env.images.types import EMBEDDED, shown
from env.types import Messages

MARK = "<image>"
"""Text that stands for an image of the column."""
KINDS = ("text", "image", "image_url")
REMOTE = ("http", "https", "s3", "gs", "hf")


class ImageRowError(ValueError):
    """Images of a row that cannot be used; the message says why, without the row's place."""


@dataclass(frozen=True, slots=True)
class ImageColumn:
    """How rows have their images."""

    DEFAULT: ClassVar[str] = "images"

    key: str = DEFAULT
    """Column of the images. A row without it may have images in its messages."""
    most: int = 0
    """Most images of a row; 0: any number."""
    required: bool = False
    """Whether every row must have the column."""


def with_images(
    messages: Sequence[Mapping[str, Any]], column: Any, of: ImageColumn, directory: Path
) -> list[dict[str, Any]]:
    """Return messages whose image parts are references; raises ImageRowError.

    `column`: what the row has in the images' column. Its images take the places of parts without
    an image of their own, then of `<image>` in texts; without either they come before the first
    text. Paths are relative to `directory`.
    """
    images = [] if column is None else column if isinstance(column, list) else [column]
    given = iter([reference(image, directory) for image in images])
    marks = _marks(messages) if images else 0
    if images and marks not in (0, len(images)):
        raise ImageRowError(
            f"has {len(images)} images in the column '{of.key}', and {marks} places for them"
        )
    found = [_message(message, given, directory, split=marks > 0) for message in messages]
    first = [{"type": "image", "image": left} for left in given]
    if first:
        found = _before_first(found, first)
    count = len(list(references(found)))
    if of.most and count > of.most:
        raise ImageRowError(f"has {count} images, and --max_images_per_prompt is {of.most}")
    return found


def references(messages: Messages) -> Iterator[str]:
    """Yield the references of all image parts, in order."""
    for message in messages:
        if isinstance(message["content"], list):
            for part in message["content"]:
                if part.get("type") == "image":
                    yield part["image"]


def texts_of(messages: Messages) -> Messages:
    """Return messages without their images, for who reads text only."""
    return [
        {**message, "content": "".join(part.get("text", "") for part in message["content"])}
        if next(references([message]), None)
        else message
        for message in messages
    ]


def reference(image: Any, directory: Path) -> str:
    """Return the reference of an image: of a path, a URI, bytes, or datasets' {bytes, path}."""
    if isinstance(image, Mapping):
        image = image.get("bytes") or image.get("path") or image.get("url")
    if isinstance(image, bytes):
        return f"{EMBEDDED}image;base64,{base64.b64encode(image).decode()}"
    if not isinstance(image, str) or not image:
        raise ImageRowError(f"has an image of type {type(image).__name__}, where a path is wanted")
    if image.startswith(EMBEDDED):
        return image
    try:
        parts = urlsplit(image)
    except ValueError as error:
        raise ImageRowError(
            f"names the image {shown(image)}, which is not a path: {error}"
        ) from error
    if parts.scheme in REMOTE:
        raise ImageRowError(
            f"names the image {shown(image)}, and only files are read. Download the images first, "
            "and give their paths"
        )
    path = unquote(parts.path) if parts.scheme == "file" else image
    return str(directory / path)


def _marks(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return how many places the messages have for images of the column."""
    return sum(
        part["text"].count(MARK) if part["type"] == "text" else not _own(part)
        for message in messages
        for part in _parts(message)
    )


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, Sequence):
        raise ImageRowError(f"has a content of type {type(content).__name__}, no text and no parts")
    found = [part if isinstance(part, dict) else {"type": part} for part in content]
    for part in found:
        if part.get("type") not in KINDS:
            raise ImageRowError(
                f"has a part of type '{part.get('type')}'; texts and images are read"
            )
        text = part.get("text")
        if part["type"] == "text" and not isinstance(text, str | None):
            raise ImageRowError(f"has a text of type {type(text).__name__}, where a text is wanted")
    return [
        {"type": "text", "text": part.get("text") or ""} if part["type"] == "text" else part
        for part in found
    ]


def _own(part: Mapping[str, Any]) -> Any:
    """Return the image that a part has itself; None: it is a place for one of the column.

    Tables fill the keys that only other parts have with None.
    """
    return part.get("image") or part.get("image_url")


def _message(
    message: Mapping[str, Any], given: Iterator[str], directory: Path, *, split: bool
) -> dict[str, Any]:
    """Return a message with its images. A message of one text keeps it as a string."""
    content: list[dict[str, Any]] = []
    for part in _parts(message):
        if part["type"] == "text":
            content += _split(part["text"], given) if split else [part]
            continue
        own = _own(part)
        if own is None and (own := next(given, None)) is None:
            raise ImageRowError("has a part of type 'image' without an image")
        content.append({"type": "image", "image": reference(own, directory)})
    whole = all(part["type"] == "text" for part in content)
    text = "".join(part["text"] for part in content) if whole else ""
    return {**message, "content": text if whole else content}


def _split(text: str, given: Iterator[str]) -> Iterator[dict[str, Any]]:
    first, *rest = text.split(MARK)
    if first:
        yield {"type": "text", "text": first}
    for piece in rest:
        yield {"type": "image", "image": next(given)}
        if piece:
            yield {"type": "text", "text": piece}


def _before_first(
    messages: list[dict[str, Any]], images: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return messages with `images` before the content of the first user message."""
    for number, message in enumerate(messages):
        if message["role"] == "user":
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            changed = {**message, "content": [*images, *parts]}
            return [*messages[:number], changed, *messages[number + 1 :]]
    raise ImageRowError("has images and no message of the role 'user'")
