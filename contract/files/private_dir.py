"""Directories of a node that no other user of its machine can read, rename or replace.

They lie outside Ray's temporary directory: Ray opens that one to every user (mode 0777, without
the sticky bit), so any user can put another program or socket in its place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
"""The fallback for a temporary directory in which other users could rename our directories."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def of_node(mark: str) -> Path:
    """Return the private directory of the node with this mark. It need not exist."""
    key = hashlib.sha256(mark.encode()).hexdigest()[:12]
    return _base() / f"rollcall-{os.getuid()}-{key}"


def make(path: Path) -> None:
    """Make the directory, and the missing ones above it, for this user alone.

    Raises OSError, also if the directory exists and is not private.
    """
    for missing in reversed([one for one in (path, *path.parents) if not one.exists()]):
        _refuse_unsafe(missing)
        missing.mkdir(mode=0o700)
    check(path)


def check(path: Path) -> None:
    """Raises PermissionError unless the directory is private; FileNotFoundError if it is gone."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{path} is not a directory: remove it")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{path} is another user's: have it removed")
    if mode := status.st_mode & OTHERS:
        raise PermissionError(f"{path} is open to other users (mode {mode:03o}): remove it")
    _refuse_unsafe(path)


def remove(path: Path) -> None:
    """Remove the directory if it is private, and the one above it if nothing else is in that."""
    with suppress(OSError):
        check(path)
        shutil.rmtree(path)
        path.parent.rmdir()


def _base() -> Path:
    bases = (Path(tempfile.gettempdir()), SHARED_MEMORY)
    safe = (base for base in bases if base.is_dir() and not _unsafe_parent(base / "new"))
    return next(safe, bases[0])


def _unsafe_parent(path: Path) -> Path | None:
    """Return a directory above `path` in which another user can rename our entries; None: none."""
    real = path.parent.resolve()
    for parent in (*path.parents, real, *real.parents):
        status = parent.lstat()
        owned = status.st_uid in (0, os.geteuid())
        writable = status.st_mode & WRITABLE_BY_OTHERS and not status.st_mode & stat.S_ISVTX
        if not owned or (writable and not stat.S_ISLNK(status.st_mode)):
            return parent
    return None


def _refuse_unsafe(path: Path) -> None:
    if parent := _unsafe_parent(path):
        raise PermissionError(
            f"other users can replace {path}, as they may rename what is in {parent}: "
            "remove that, or set TMPDIR to a directory of this user alone"
        )
