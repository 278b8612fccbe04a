"""Directories of a node that no other user of its machine can read, rename or replace.

Ray opens its own directory to every user (mode 0777, without the sticky bit), so it lies in a
private one (`contract.files.ray_home`), and programs and sockets of Rollcall never lie in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
"""The fallback for a temporary directory in which other users could rename our directories."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
UNMAPPED = Path("/proc/sys/kernel/overflowuid")
"""Has the number that stands for every user whom a namespace of users does not know."""
USER_MAP = Path("/proc/self/uid_map")
EVERY_USER = ["0", "0", "4294967295"]
"""The map of a namespace that knows all users."""
MOUNTS = Path("/proc/self/mountinfo")
EMPTY_DIR = re.compile(r"/pods/[^/]+/volumes/kubernetes\.io~empty-dir/")
"""In the path of an emptyDir on its machine. Only root enters the directories above it."""
ESCAPED = re.compile(r"\\([0-7]{3})")
"""A space, tab, newline or backslash in a path of `MOUNTS`."""


class NotPrivateError(PermissionError):
    """Other users can reach what is in a directory."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}: {remedy}")
        self.problem, self.remedy = problem, remedy


def of_node(mark: str) -> Path:
    """Return the private directory of the node with this mark. It need not exist."""
    key = hashlib.sha256(mark.encode()).hexdigest()[:12]
    return _base() / f"rollcall-{os.getuid()}-{key}"


def make(path: Path) -> None:
    """Make the directory, and the missing ones above it, for this user alone.

    Raises OSError; NotPrivateError if the directory exists and is not private.
    """
    for missing in reversed([one for one in (path, *path.parents) if not one.exists()]):
        check_place(missing)
        missing.mkdir(mode=0o700)
    check(path)


def check(path: Path) -> None:
    """Raises NotPrivateError unless the directory is private; FileNotFoundError if it is gone."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivateError(f"{path} is not a directory", "remove it")
    if status.st_uid != os.geteuid():
        raise NotPrivateError(f"{path} is another user's", "have it removed")
    if mode := status.st_mode & OTHERS:
        raise NotPrivateError(f"{path} is open to other users (mode {mode:03o})", "remove it")
    check_place(path)


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
        if not is_trusted(status.st_uid):
            return parent
        is_safe = stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX
        is_open = status.st_mode & WRITABLE_BY_OTHERS and not is_safe
        if is_open and not _is_ours_alone(parent, status.st_mode):
            return parent
    return None


def _is_ours_alone(directory: Path, mode: int) -> bool:
    """Return whether this user's processes alone can rename what is in the open directory.

    An emptyDir of Kubernetes has mode 0777, and nobody outside of its pod can reach it. If root
    runs this process, a policy's programs are other users in the pod: the sticky bit is set.
    """
    if not is_of_pod(directory):
        return False
    if os.geteuid() != 0:  # so it cannot start a process of another user
        return True
    try:
        directory.chmod(stat.S_IMODE(mode) | stat.S_ISVTX)
    except OSError:
        return False
    return True


def is_of_pod(directory: Path) -> bool:
    """Return whether the directory is in an emptyDir, which only the containers of a pod have.

    An emptyDir in memory is a mount of its own, and has the sticky bit.
    """
    real = directory.resolve()
    below, above = "/", "/"
    for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
        root, point = (ESCAPED.sub(_octal, field) for field in line.split(" ", 5)[3:5])
        if real.is_relative_to(point) and len(point) >= len(above):  # the last one is on top
            below, above = root, point
    return EMPTY_DIR.search(f"{below}/") is not None


def _octal(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 8))


def is_trusted(user: int) -> bool:
    """Return whether the user is root or this process's, who can change its files anyway."""
    return user in (0, os.geteuid()) or user == _unmapped_user()


def _unmapped_user() -> int | None:
    """Return the number of users whom this namespace does not know; None if it knows all.

    In a container without rights on its host, the host's root is such a user, and owns `/tmp`.
    """
    if USER_MAP.read_text().split() == EVERY_USER:
        return None
    return int(UNMAPPED.read_text())


def check_place(path: Path) -> None:
    """Raises NotPrivateError if other users could rename `path`, which need not exist."""
    if parent := _unsafe_parent(path):
        repaired = f"chmod +t {parent}" if is_trusted(parent.lstat().st_uid) else "remove that"
        raise NotPrivateError(
            f"other users can replace {path}, as they may rename what is in {parent}",
            f"{repaired}, or set TMPDIR to a directory of this user alone",
        )
