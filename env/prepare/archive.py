"""Extracts the images of an archive: safely, with progress, and from where it broke off."""

from __future__ import annotations

import lzma
import tarfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from env.prepare.output import PrepareError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
FILE_BYTES = 64 << 20
"""Largest image. A larger file is refused before it is written."""
TOTAL_BYTES = 64 << 30
"""Most bytes of all images together, so that no archive fills the disk."""
SECONDS_BETWEEN_LINES = 10.0


def extract_images(archive: Path, out: Path) -> set[str]:
    """Extract the images of a tar archive below `out`. Returns their paths in the archive.

    A file that is there with its whole content stays. Raises PrepareError for an archive that is
    damaged, or that would write outside of `out`.
    """
    found: set[str] = set()
    total = 0
    spoke_at = time.monotonic()
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in _images(tar, archive):
                total += member.size
                if total > TOTAL_BYTES:
                    raise PrepareError(f"{archive}: its images have over {TOTAL_BYTES >> 30} GiB")
                name = str(PurePosixPath(member.name))
                _extract(tar, member, out / name)
                found.add(name)
                if time.monotonic() - spoke_at > SECONDS_BETWEEN_LINES:
                    spoke_at = time.monotonic()
                    print(f"{archive.name}: {len(found)} images, {total / 1e9:.2f} GB", flush=True)
            # The checksum stands behind all members, where tarfile does not read.
            while tar.fileobj and tar.fileobj.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk; gzip and bz2 raise it without a number for damaged data
        raise PrepareError(
            f"{archive}: damaged or cut off after {len(found)} images: {error}. Download it again; "
            "the images that are extracted stay"
        ) from error
    return found


def _images(tar: tarfile.TarFile, archive: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the images of an archive, and leave out everything else. Raises PrepareError."""
    for member in tar:
        path = PurePosixPath(member.name)
        if path.suffix.lower() not in SUFFIXES or path.name.startswith("._"):
            continue
        if path.is_absolute() or ".." in path.parts or not member.isreg():
            raise PrepareError(
                f"{archive}: {member.name} is a link, or leads out of the directory. Nothing of "
                "such an archive can be trusted"
            )
        if member.size > FILE_BYTES:
            raise PrepareError(
                f"{archive}: {member.name} has {member.size >> 20} MiB, and images of at most "
                f"{FILE_BYTES >> 20} MiB are read"
            )
        yield member


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, to: Path) -> None:
    file = tar.extractfile(member)
    assert file is not None  # it is a regular file
    content = file.read()
    if to.is_file() and to.read_bytes() == content:
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.part")
    part.write_bytes(content)
    part.replace(to)
