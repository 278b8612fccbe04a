"""Contexts with images for vLLM, which repeats the token of each image itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from env.images.types import PlacedImage
from trainer.types import EngineFailedError


def engine_input(renderer: Any, tokens: Sequence[int], images: Sequence[PlacedImage]) -> Any:
    """Return what vLLM's engine takes as a prompt. `renderer`: vLLM's own.

    vLLM looks for the places of images by their token, which a policy may also write. So vLLM is
    shown another token there, and the context's own tokens afterwards. Raises EngineFailedError if
    vLLM's images have other places than the trainer's.
    """
    if not images:
        return {"prompt_token_ids": list(tokens)}
    (rendered,) = renderer.render_cmpl([_prompt(tokens, images)])
    seen = rendered["prompt_token_ids"]
    places = [(place.offset, place.length) for place in rendered["mm_placeholders"]["image"]]
    if len(seen) != len(tokens) or places != [(p.start, p.image.tokens) for p in images]:
        raise EngineFailedError(
            f"vLLM makes {len(seen)} tokens of a prompt of {len(tokens)} tokens with its "
            f"{len(images)} images: its image processor differs from the trainer's"
        )
    rendered["prompt_token_ids"] = list(tokens)
    return rendered


def _prompt(tokens: Sequence[int], images: Sequence[PlacedImage]) -> dict[str, Any]:
    """Return vLLM's prompt: one token for each image, and the images as Pillow has them."""
    token = tokens[images[0].start]
    other = 1 if token == 0 else 0
    kept: list[int] = []
    at = 0
    for placed in images:
        kept += [other if one == token else one for one in tokens[at : placed.start]]
        kept.append(token)
        at = placed.start + placed.image.tokens
    kept += [other if one == token else one for one in tokens[at:]]
    pictures = [Image.fromarray(placed.image.pixels) for placed in images]
    return {"prompt_token_ids": kept, "multi_modal_data": {"image": pictures}}
