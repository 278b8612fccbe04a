"""Archives that are small on the disk and would take the machine's memory, disk or hours."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from env.prepare.archive import extract_images
from env.prepare.output import PrepareError

ZEROS = bytes(1 << 20)
MOST_MEMORY = 48 << 20
"""Bytes of Python's memory that reading a bomb may need."""


def zipped(path: Path) -> None:
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.png", "w") as file,
    ):
        for _ in range(200):
            file.write(ZEROS)


def gzipped(path: Path) -> None:
    """A file that is no image, and is skipped by reading it."""
    member = tarfile.TarInfo("notes.json")
    member.size = 300 << 20
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(member.tobuf())
        for _ in range(300):
            file.write(ZEROS)


def with_headers(path: Path) -> None:
    """Its extended header has 300 MiB, which Python would read and parse as a whole."""
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, 300 << 20
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(member.tobuf())
        for _ in range(300):
            file.write(ZEROS)


def many_headers(path: Path) -> None:
    """Headers of headers of headers: each is read within the one before."""
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, 10
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write((member.tobuf() + b"10 a=bcde\n".ljust(512, b"\0")) * 20_000)


def sparse(path: Path) -> None:
    """An image of 1 TiB of holes."""
    member = tarfile.TarInfo("a.png")
    member.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(1 << 40),
    }
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO())


def old_sparse(path: Path) -> None:
    member = tarfile.TarInfo("a.png")
    member.type = tarfile.GNUTYPE_SPARSE
    path.write_bytes(gzip.compress(member.tobuf() + bytes(1024)))


def deep(path: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a/" * 20_000 + "b.png"), io.BytesIO())


BOMBS = [zipped, gzipped, with_headers, many_headers, sparse, old_sparse, deep]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_before_it_goes_off(bomb: Callable[[Path], None], tmp_path: Path) -> None:
    archive, out = tmp_path / "images.tar.gz", tmp_path / "out"
    bomb(archive)
    assert archive.stat().st_size < 5 << 20
    tracemalloc.start()
    try:
        with pytest.raises(PrepareError):
            extract_images(archive, out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY
    assert not list(tmp_path.glob("out/**/*.png"))
