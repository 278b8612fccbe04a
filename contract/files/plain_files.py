"""Opens files of a run directory that are what they seem: no link leads out of it.

A job, or another user who may write to the directory, can put a link there: to the run's token, or
to a file that only the reader of the directory may read. Whoever is shown the file gets the other.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path

LOGS = "logs"
"""The directory of a run that its head makes: its owner is a run's owner, too.

An NFS server may give what root writes to another user than the run directory's.
"""


class NotPlainError(PermissionError):
    """The file is a link, has several names, belongs to another user, or is no file."""


def open_plain(path: Path, below: Path | None = None) -> BufferedReader:
    """Open a file to read it. No part of the path below `below` may be a link.

    `below`: the directory that is trusted, by default the file's own. Raises NotPlainError, and
    OSError as `open` does.
    """
    root = path.parent if below is None else below
    with _directory(root, path.relative_to(root).parent) as (top, directory):
        descriptor = _opened(path, os.O_RDONLY | os.O_NONBLOCK, directory)
        _checked(path, descriptor, _owners(top, directory))
        return open(str(path), "rb", opener=lambda *_: descriptor)


def append_plain(path: Path, content: bytes) -> None:
    """Append to a file, which is made if it is missing. Raises as `open_plain`."""
    with _directory(path.parent, Path()) as (top, directory):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        descriptor = _opened(path, flags, directory)
        _checked(path, descriptor, _owners(top, directory))
        with os.fdopen(descriptor, "ab") as file:
            file.write(content)


def create_plain(path: Path, below: Path | None = None) -> BufferedWriter:
    """Begin a file anew, in place of whatever has its name. Parameters and errors as `open_plain`.

    A link of this name is deleted: its target is not written to.
    """
    root = path.parent if below is None else below
    with _directory(root, path.relative_to(root).parent) as (_, directory):
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=directory)
        descriptor = _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, directory)
        return os.fdopen(descriptor, "wb")


def plain_names(directory: Path) -> list[str]:
    """Return the names of the plain files in a directory of a run, in no order.

    A name that is not UTF-8 is left out: neither JSON nor a page can say it. Raises OSError.
    """
    with _directory(directory.parent, Path(directory.name)) as (top, opened):
        owners = _owners(top, opened)
        with os.scandir(opened) as entries:
            return [
                entry.name for entry in entries if _is_text(entry.name) and _fits(entry, owners)
            ]


def _fits(entry: os.DirEntry[str], owners: set[int]) -> bool:
    try:
        return not _fault_of(entry.stat(follow_symlinks=False), owners)
    except OSError:  # it has been deleted since
        return False


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _directory(root: Path, parts: Path) -> Iterator[tuple[int, int]]:
    """Yield descriptors of `root` and of the directory below it."""
    opened = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        path = root
        for part in parts.parts:
            path /= part
            opened.append(_opened(path, os.O_RDONLY | os.O_DIRECTORY, opened[-1]))
        yield opened[0], opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _opened(path: Path, flags: int, directory: int) -> int:
    if path.name == "..":
        raise NotPlainError(errno.EPERM, "is outside of its directory", str(path))
    try:
        return os.open(path.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=directory)
    except OSError as error:
        # Linux says ENOTDIR of a link that was to be a directory, ENXIO of a socket.
        if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and path.is_symlink()):
            why = "is a link, and may lead out of the run"
        elif error.errno == errno.ENXIO:
            why = "is not a plain file"
        else:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise NotPlainError(errno.EPERM, why, str(path)) from None


def _checked(path: Path, descriptor: int, owners: set[int]) -> None:
    """Close the descriptor and raise NotPlainError unless it is that of a plain file."""
    if why := _fault_of(os.fstat(descriptor), owners):
        os.close(descriptor)
        raise NotPlainError(errno.EPERM, why, str(path))


def _fault_of(found: os.stat_result, owners: set[int]) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "is not a plain file"
    if found.st_nlink > 1:
        return f"has {found.st_nlink} names (hard links), and may be a file from elsewhere"
    if found.st_uid not in owners:
        return f"belongs to another user (uid {found.st_uid}) than the run"
    return ""


def _owners(top: int, directory: int) -> set[int]:
    """Return the users whose files count as the run's own."""
    owners = {os.geteuid(), os.fstat(top).st_uid, os.fstat(directory).st_uid}
    try:
        logs = os.stat(LOGS, dir_fd=top, follow_symlinks=False)
    except OSError:
        return owners
    return owners | ({logs.st_uid} if stat.S_ISDIR(logs.st_mode) else set())
