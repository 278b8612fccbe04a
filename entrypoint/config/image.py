"""Which image this program was installed into."""

from __future__ import annotations

from pathlib import Path


def digest() -> str | None:
    """Of the source and the locks that the image was built of; None outside of an image."""
    try:
        return Path(__file__).with_name("image.digest").read_text().strip() or None
    except OSError:
        return None
