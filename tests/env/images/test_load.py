"""Reading images: every fault is named, and nothing is decoded beyond the limits."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from env.images import load
from env.images.load import ImageError
from tests.support.lfs_pointer import POINTER


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))


def png_of_size(width: int, height: int) -> bytes:
    """A few bytes whose header promises an image of any size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 100_000, 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("form", load.FORMATS)
def test_images_of_every_format_are_read_as_rgb(tmp_path: Path, form: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(encoded(NOISE, form))
    for reference in (str(path), path.as_uri()):
        found = load.load(reference)
        assert (found.mode, found.size) == ("RGB", (60, 40))


def test_bytes_in_a_row_are_read_as_a_file_is(tmp_path: Path) -> None:
    body = base64.b64encode(encoded(NOISE)).decode()
    assert load.load(f"data:image;base64,{body}").tobytes() == NOISE.tobytes()
    with pytest.raises(ImageError, match="wants ;base64"):
        load.load("data:image/png,abc")
    with pytest.raises(ImageError, match="not base64"):
        load.load("data:image/png;base64,a*c")


def test_an_image_is_turned_as_its_camera_was() -> None:
    marked = Image.Exif()
    marked[0x0112] = 6  # a quarter turn
    found = load.decode(encoded(NOISE, "JPEG", exif=marked), "turned")
    assert found.size == (40, 60)


def transparent() -> Image.Image:
    """Black lines on nothing, below which it is black as well."""
    image = Image.new("RGBA", (4, 1), (0, 0, 0, 0))
    image.putpixel((0, 0), (0, 0, 0, 255))
    return image


@pytest.mark.parametrize(
    ("image", "options"),
    [
        (transparent(), {}),
        (transparent().convert("LA"), {}),
        (Image.fromarray(np.array([[0, 1, 1, 1]], dtype=np.uint8)), {"transparency": 1}),
    ],
)
def test_what_is_transparent_is_white(image: Image.Image, options: dict[str, Any]) -> None:
    found = load.decode(encoded(image, **options), "drawing")
    assert np.asarray(found).tolist() == [[[0] * 3, *[[255] * 3] * 3]]


def test_a_grey_image_of_16_bits_keeps_its_shades() -> None:
    grey = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    for form in ("PNG", "TIFF"):
        found = load.decode(encoded(Image.fromarray(grey), form), "depth")
        assert np.asarray(found)[..., 0].tolist() == np.arange(256).reshape(16, 16).tolist()


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_an_image_of_32_bits_is_refused(kind: type[np.generic]) -> None:
    image = Image.fromarray(np.ones((4, 4), dtype=kind))
    with pytest.raises(ImageError, match="scan: the image has pixels of 32 bits"):
        load.decode(encoded(image, "TIFF"), "scan")


def test_a_missing_file_a_folder_and_a_pipe_are_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, says in (("none.png", "no such file"), ("", "no regular"), ("pipe", "no regular")):
        with pytest.raises(ImageError, match=says) as caught:
            load.load(str(tmp_path / name))
        assert str(caught.value).startswith(str(tmp_path / name).rstrip("/"))


def test_base64_without_its_scheme_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="An image in base64 begins with data:") as caught:
        load.load(str(tmp_path / ("iVBORw0KGgo" * 100_000)))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_truncated_image_is_refused(form: str) -> None:
    whole = encoded(NOISE, form)
    for length in (len(whole) // 2, len(whole) * 3 // 4):
        with pytest.raises(ImageError, match=r"cut.png: (truncated or damaged|no image)"):
            load.decode(whole[:length], "cut.png")


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text(POINTER)
    with pytest.raises(ImageError, match=r"a\.png is a Git LFS pointer.*git lfs pull"):
        load.load(str(tmp_path / "a.png"))


@pytest.mark.parametrize("content", [b"", b"no image", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_what_is_no_image_is_refused(content: bytes) -> None:
    with pytest.raises(ImageError, match="x: no image of the formats PNG, JPEG"):
        load.decode(content, "x")


@pytest.mark.parametrize("size", [(12_000, 12_000), (60_000, 60_000)])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    bomb = png_of_size(*size)
    assert len(bomb) < 1000
    with pytest.raises(ImageError, match="at most 64 Mi pixels are decoded"):
        load.decode(bomb, "bomb.png")


def test_a_file_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.png"
    with path.open("wb") as file:
        file.truncate(load.FILE_BYTES + (5 << 20))
    with pytest.raises(ImageError, match="the file has 69 MiB, and images of at most 64 MiB"):
        load.load(str(path))
