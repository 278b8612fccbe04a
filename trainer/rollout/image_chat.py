"""Chats with images as tokens: each image takes as many places as the model has features of it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from env import coroutines
from env.data.prompts import images_of
from env.episodes.chat import Chat, ChatError, TemplateChat
from env.episodes.types import ToolSpec
from env.images.load import ImageError, load
from env.images.rows import references
from env.images.types import Image, PlacedImage, shown
from env.types import Messages, Prompt

if TYPE_CHECKING:
    from trainer.models.image_processor import ImageProcessor  # imports torch

FIRST = 8
"""Prompts that are tried before a run begins."""
READERS = 4
"""Threads that decode images. Each may hold one image in its full size."""


def first_fault(chat: Chat, prompts: Sequence[Prompt], limit: int) -> str | None:
    """Return why none of the first prompts with images can be used; None if one can.

    `limit`: most tokens of a prompt.
    """
    fault = None
    first = (p for p in prompts if next(images_of(p), None) is not None)
    for prompt in islice(first, FIRST):
        messages = prompt.messages or ()
        try:
            images = coroutines.run(chat.images(messages))
            length = len(chat.begin(messages, (), images))
        except (ImageError, ChatError, OSError) as error:
            fault = fault or f"row {prompt.index + 1}: {error}"
            continue
        if length <= limit:
            return None
        fault = fault or (
            f"row {prompt.index + 1} has {length} tokens with its images, and --prompt_max_len is "
            f"{limit}. Give a longer limit, or a smaller --image_max_pixels"
        )
    return fault


class ImageChat(TemplateChat):
    """Messages with images, in a tokeniser's chat template.

    Living episodes with the same image share its pixels. Nothing keeps them longer.
    """

    def __init__(
        self,
        tokenizer: Any,
        processor: ImageProcessor,
        image_token: int,
        ends: Collection[int] = (),
    ) -> None:
        """`image_token`: the token that the template writes once for each image."""
        super().__init__(tokenizer, ends)
        self._processor = processor
        self._image_token = image_token
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="images")
        self._living: WeakValueDictionary[str, Image] = WeakValueDictionary()

    async def images(self, messages: Messages) -> tuple[Image, ...]:
        loop = asyncio.get_running_loop()
        found = []
        for name in references(messages):
            image = self._living.get(name)
            if image is None:
                image = await loop.run_in_executor(self._readers, self._load, name)
            found.append(image)
        return tuple(found)

    def _load(self, reference: str) -> Image:
        if (living := self._living.get(reference)) is not None:
            return living
        picture = load(reference)
        try:
            found = self._processor.fit(picture)
        except ValueError as error:
            raise ImageError(f"{shown(reference)}: {error}") from None
        return self._living.setdefault(reference, found)

    def begin(
        self, messages: Messages, tools: Sequence[ToolSpec], images: Sequence[Image] = ()
    ) -> list[int]:
        return self._expanded(super().begin(messages, tools), images)

    def follow(self, messages: Messages, *, ended: bool, images: Sequence[Image] = ()) -> list[int]:
        return self._expanded(super().follow(messages, ended=ended), images)

    def placed(self, tokens: Sequence[int], images: Sequence[Image]) -> list[PlacedImage]:
        """Return the places of images. Raises ChatError for image tokens of no image."""
        places, at = [], 0
        for image in images:
            while at < len(tokens) and tokens[at] != self._image_token:
                at += 1
            places.append(PlacedImage(at, image))
            at += image.tokens
        if tokens.count(self._image_token) != sum(image.tokens for image in images):
            raise self._mismatch(len(images))
        return places

    def decode(self, tokens: Sequence[int], *, follows: bool = False) -> str:
        """Return a text that has the image token once for each image, as the template writes it."""
        image = self._image_token
        before = [None, *tokens]
        once = [t for t, last in zip(tokens, before, strict=False) if not t == last == image]
        return super().decode(once, follows=follows)

    def _expanded(self, tokens: list[int], images: Sequence[Image]) -> list[int]:
        if tokens.count(self._image_token) != len(images):
            raise self._mismatch(len(images))
        left = iter(images)
        expanded: list[int] = []
        for token in tokens:
            times = next(left).tokens if token == self._image_token else 1
            expanded += [token] * times
        return expanded

    def _mismatch(self, images: int) -> ChatError:
        name = self._tokenizer.convert_ids_to_tokens(self._image_token)
        return ChatError(
            f"the texts and the {images} images do not fit: a text has the model's own {name}, or "
            "the chat template leaves images out"
        )
