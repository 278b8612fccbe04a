"""Tells OSErrors with their remedy, adds paths and numbers to them, and explains absent paths."""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

READER_LEFT = 128 + signal.SIGPIPE
NOT_THERE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors that the user can correct; other errors are faults of the disk."""
MOST_BYTES, NAME_BYTES = 4096, 255
"""PATH_MAX with the null byte at its end, and NAME_MAX (limits.h)."""
NUMBER = re.compile(r"\(os error (\d+)\)")
"""Matches the error number in the message of a library that is written in Rust."""
OF_THE_NODE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Limits of the node, whatever path the call named."""

REFUSED = "give user {user} the right to it, or run as its owner (a container: --user UID:GID)"
LACKED = "put it on a file system that has this call"
MISPLACED = "make it, or correct the path"
PERMANENT = {
    errno.EPERM: REFUSED,
    errno.EACCES: REFUSED,
    errno.EROFS: "mount its file system for writing",
    **dict.fromkeys((errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV), LACKED),
    **dict.fromkeys((errno.ENOLCK, errno.ENOTTY, errno.EXDEV), LACKED),
    errno.ENOENT: MISPLACED,
    errno.EISDIR: "a directory is in the file's place: move it away",
    errno.ENOTDIR: "a part of the path is a file: correct the path",
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), MISPLACED),
    errno.ENOEXEC: "install it for this machine's processor",
}
"""Errors that another try would meet again, and what to do."""
TEMPORARY = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there, or raise the quota",
    errno.EIO: "see the log of its disk or server",
    errno.ESTALE: "mount it again",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.ENOMEM: "give the node more memory",
    errno.EADDRINUSE: "end the process that listens there",
}


def describe(error: OSError) -> str:
    file = f"{error.filename}: " if error.filename else ""
    return f"{file}{error.strerror or error}"


def remedy(error: OSError) -> str:
    """What the user can do; "" if the error's number does not say it."""
    known = (PERMANENT | TEMPORARY).get(error.errno or 0, "")
    return known.format(user=os.geteuid())


def explain(error: OSError) -> str:
    """The error in a sentence, with its remedy."""
    what = remedy(error)
    return f"{describe(error)}: {what}" if what else describe(error)


def why_absent(path: Path) -> str | None:
    """Return why this process cannot access `path`; None if it can."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"
    except OSError as error:
        return error.strerror or type(error).__name__
    except ValueError:  # the path has a null character
        return "no path"
    return None


def can_be_path(path: Path) -> bool:
    """Return whether Linux takes such a path at all, whether a file is there or not."""
    try:
        whole = os.fsencode(path)
    except UnicodeEncodeError:
        return False
    parts = whole.split(b"/")
    return b"\0" not in whole and len(whole) < MOST_BYTES and len(max(parts, key=len)) <= NAME_BYTES


@contextmanager
def with_path(path: Path) -> Iterator[None]:
    """Add `path` to an OSError of the block that names no file, such as one of a read."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def replacing_path(path: Path) -> Iterator[None]:
    """Make `path` the file of every OSError of the block.

    The error may name a temporary file, which means nothing to the user.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def with_errno(path: Path) -> Iterator[None]:
    """Raise errors of the system from a Rust library as OSErrors with their numbers.

    The library's own error has the number only in its message, or not at all. `path` is the file
    that the library reads. Errors in NOT_THERE keep the library's message.
    """
    try:
        yield
    except Exception as error:
        known = isinstance(error, OSError) and error.errno is not None
        found = None if known else _of_rust(error, path)
        if found is None or isinstance(found, NOT_THERE):
            raise
        raise found from error


def _of_rust(error: Exception, path: Path) -> OSError | None:
    if found := NUMBER.search(str(error)):
        number = int(found[1])
        return OSError(number, os.strerror(number), str(path))
    if not isinstance(error, FileNotFoundError):
        return None
    file = str(error).rpartition(": ")[2]
    try:  # safetensors raises FileNotFoundError for every file that it cannot open
        Path(file).open("rb").close()
    except OSError as why:
        return why
    return OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), file)


def to_a_reader(main: Callable[[], int]) -> int:
    """Return what `main` returns; 141 if the reader of its output has left, as `| head` does.

    Other programs also exit with 141 then.
    """
    try:
        try:
            return main()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_left():
            raise
        # Discard the buffered output: Python would report an error when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT


def _reader_left() -> bool:
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    return any(state & select.POLLERR for _, state in look.poll(0))
