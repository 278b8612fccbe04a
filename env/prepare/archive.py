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
HEADER_BYTES = 64 << 10
"""Largest extended header of a file: its name and a few attributes. tarfile reads it as a whole."""
LONGEST_NAME = 1024
DEEPEST = 32
"""Directories above a file."""
MOST_RATIO = 100
"""Bytes of an archive for each that it has on the disk; images are compressed already."""
LEAST_BYTES = 64 << 20
"""So much of an archive is read whatever its ratio is."""
EXTENDED = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


class _Member(tarfile.TarInfo):
    """A member whose headers are bounded before they are read.

    Python's own filters look at members after their headers are parsed, which may need a GB.
    """

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"{self.name[:LONGEST_NAME]} is sparse")
        if self.type in EXTENDED and not 0 <= self.size <= HEADER_BYTES:
            raise tarfile.ReadError(f"it has a header of {self.size} bytes")
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return member

    def _refuse_sparse(self, *_: object) -> None:
        raise tarfile.ReadError(f"{self.name[:LONGEST_NAME]} is sparse")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def extract_images(archive: Path, out: Path) -> set[str]:
    """Extract the images of a tar archive below `out`. Returns their paths in the archive.

    A file that is there with its whole content stays. Raises PrepareError for an archive that is
    damaged, or that would write outside of `out`.
    """
    found: set[str] = set()
    total = 0
    spoke_at = time.monotonic()
    try:
        most = max(LEAST_BYTES, MOST_RATIO * archive.stat().st_size)
        with tarfile.open(archive, "r:*", tarinfo=_Member) as tar:
            for member in _images(tar, archive, most):
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
            rest = most
            while rest > 0 and tar.fileobj and (part := tar.fileobj.read(1 << 20)):
                rest -= len(part)
            if rest <= 0:
                raise tarfile.ReadError(f"it has over {most} bytes")
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        lzma.LZMAError,
        RecursionError,
        OSError,
    ) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk; gzip and bz2 raise it without a number for damaged data
        raise PrepareError(
            f"{archive}: damaged or cut off after {len(found)} images: {error}. Download it again; "
            "the images that are extracted stay"
        ) from error
    return found


def _images(tar: tarfile.TarFile, archive: Path, most: int) -> Iterator[tarfile.TarInfo]:
    """Yield the images of an archive, and leave out everything else.

    `most`: bytes of the archive when it is not compressed. Raises PrepareError and TarError.
    """
    for member in tar:
        tar.members.clear()  # type: ignore[attr-defined]  # else every member stays in memory
        if member.offset_data + member.size > most:  # before its content is skipped
            raise tarfile.ReadError(
                f"it has over {most} bytes, {MOST_RATIO} times as many as its file"
            )
        path = PurePosixPath(member.name)
        if len(member.name) > LONGEST_NAME or len(path.parts) > DEEPEST:
            raise PrepareError(f"{archive}: {member.name[:80]}… is too long or too deep for a path")
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
