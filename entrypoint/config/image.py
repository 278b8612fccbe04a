"""Which image this program was installed into."""

from __future__ import annotations

from pathlib import Path


def digest() -> str | None:
    """The digest of the image's source and lock files; None outside an image."""
    try:
        return Path(__file__).with_name("image.digest").read_text().strip() or None
    except OSError:
        return None
