"""Images as models take them. No dependency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

EMBEDDED = "data:"
"""Beginning of a reference that has the encoded image itself."""


def shown(reference: str) -> str:
    """Return a reference for messages: of a data URI, the beginning."""
    limit = 40 if reference.startswith(EMBEDDED) else 200
    return reference if len(reference) <= limit else f"{reference[: limit - 1]}…"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Image:
    """An image at the size that the model takes. Several episodes may share it."""

    pixels: Any
    """[height, width, 3] numpy array of bytes."""
    tokens: int
    """Tokens of the image in a context."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image in a sequence of tokens."""

    start: int
    """Index of the image's first token."""
    image: Image
