"""Reads images within limits on their files and their sizes, and decodes them completely."""

from __future__ import annotations

import base64
import binascii
import errno
import stat
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from env.images import git_lfs
from env.images.types import EMBEDDED, shown

FILE_BYTES = 64 << 20
PIXELS = 64 << 20
"""Width times height. The decoded image takes at most 256 MiB."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are decoded. Pillow would start other programs for some of the others."""


class ImageError(ValueError):
    """An image that cannot be used; the message names it, and says why."""


def load(reference: str) -> Image.Image:
    """Return the RGB image of a file's path, or of a data URI.

    Raises ImageError, and OSError if the disk fails.
    """
    return decode(_content(reference), shown(reference))


def decode(content: bytes, name: str) -> Image.Image:
    """Return the first frame of an encoded image as RGB. Raises ImageError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(BytesIO(content), formats=FORMATS) as opened:
                _check_size(opened, name)
                opened.load()
                return _rgb(ImageOps.exif_transpose(opened), name)
    except UnidentifiedImageError:
        if content.startswith(git_lfs.BEGINNING):
            raise ImageError(f"{name} {git_lfs.SAID}") from None
        raise ImageError(f"{name}: no image of the formats {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{name}: {_too_many('more pixels')}") from None
    except ImageError:
        raise
    except MemoryError:
        raise ImageError(f"{name}: the memory is too small to decode the image") from None
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error, …
        raise ImageError(f"{name}: truncated or damaged: {error}") from None


def _rgb(found: Image.Image, name: str) -> Image.Image:
    """Return an image in RGB, on white where it is transparent, as vLLM reads it.

    The colours below are often black, as are the lines of a drawing. Raises ImageError for pixels
    of 32 bits, whose white is unknown.
    """
    if found.mode.startswith("I;16"):  # Pillow would make all but the darkest white
        eighth = np.rint(np.asarray(found, dtype=np.float32) / 257).astype(np.uint8)
        return Image.fromarray(eighth).convert("RGB")
    if found.mode in ("I", "F"):
        raise ImageError(f"{name}: the image has pixels of 32 bits. Convert it to 8 bits")
    if not found.has_transparency_data:
        return found.convert("RGB")
    white = Image.new("RGBA", found.size, "white")
    white.alpha_composite(found.convert("RGBA"))
    return white.convert("RGB")


def _check_size(opened: Image.Image, name: str) -> None:
    """Raise ImageError before anything is decoded: the header has the size."""
    width, height = opened.size
    if width * height > PIXELS:
        raise ImageError(f"{name}: {_too_many(f'{width} x {height} pixels')}")


def _too_many(found: str) -> str:
    return f"the image has {found}, and at most {PIXELS >> 20} Mi pixels are decoded. Make it less"


def _content(reference: str) -> bytes:
    if reference.startswith(EMBEDDED):
        return _embedded(reference)
    path = Path(reference.removeprefix("file://"))
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ImageError(f"{shown(reference)}: no such file") from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise ImageError(
            f"{shown(reference)}: no path. An image in base64 begins with data:image/png;base64,"
        ) from None
    except ValueError:  # a null byte
        raise ImageError(f"{shown(reference)!r}: no path") from None
    if not stat.S_ISREG(found.st_mode):
        raise ImageError(f"{path}: no regular file")
    if found.st_size > FILE_BYTES:
        raise ImageError(
            f"{path}: the file has {found.st_size >> 20} MiB, and images of at most "
            f"{FILE_BYTES >> 20} MiB are read. Make it smaller"
        )
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES)
    except PermissionError as error:
        raise ImageError(f"{path}: {error.strerror}") from None


def _embedded(uri: str) -> bytes:
    head, found, body = uri.partition(",")
    if not found or not head.endswith(";base64"):
        raise ImageError(f"{shown(uri)}: a data URI of an image wants ;base64, and its bytes")
    if len(body) > FILE_BYTES * 4 // 3:
        raise ImageError(f"{shown(uri)}: images of at most {FILE_BYTES >> 20} MiB are read")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ImageError(f"{shown(uri)}: not base64: {error}") from None
