"""Prompts with images for vLLM, which repeats the token of each image itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from env.images.types import PlacedImage
from trainer.types import EngineFailedError


def prompt(tokens: Sequence[int], images: Sequence[PlacedImage]) -> dict[str, Any]:
    """Return vLLM's prompt: one token for each image, and the images as Pillow has them."""
    if not images:
        return {"prompt_token_ids": list(tokens)}
    kept: list[int] = []
    at = 0
    for placed in images:
        kept += tokens[at : placed.start + 1]
        at = placed.start + placed.image.tokens
    kept += tokens[at:]
    pictures = [Image.fromarray(placed.image.pixels) for placed in images]
    return {"prompt_token_ids": kept, "multi_modal_data": {"image": pictures}}


def check(seen: Sequence[int] | None, tokens: Sequence[int], images: Sequence[PlacedImage]) -> None:
    """Raise EngineFailedError if vLLM saw other tokens than the trainer will."""
    if images and list(seen or ()) != list(tokens):
        raise EngineFailedError(
            f"vLLM makes {len(seen or ())} tokens of a prompt of {len(tokens)} tokens with its "
            f"{len(images)} images: its image processor differs from the trainer's"
        )
