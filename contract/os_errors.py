"""Errors of the system, each with the file that it is about."""

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
"""Errors that the user can put right; any other is the disk's."""
NUMBER = re.compile(r"\(os error (\d+)\)")
"""In the text of an error of the system that a library in Rust tells of."""


def why_absent(path: Path) -> str | None:
    """Why there is nothing at `path` that this process can look at; None where there is."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"
    except OSError as error:
        return error.strerror or type(error).__name__
    except ValueError:  # it has a null character
        return "no path"
    return None


@contextmanager
def named(path: Path) -> Iterator[None]:
    """An OSError inside is about `path` where it names no file, as one of a read or a write."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def about(path: Path) -> Iterator[None]:
    """An OSError inside is about `path`, whatever file it names: a temporary one means nothing to
    whoever reads of it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def numbered(path: Path) -> Iterator[None]:
    """An error of the disk or the machine in a library in Rust is an OSError with its number.

    The library's own error has the number in its text alone, or not at all. `path`: what it reads.
    What the user can put right (NOT_THERE) stays as the library tells it.
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
    try:  # safetensors says so of any file that it cannot open
        Path(file).open("rb").close()
    except OSError as why:
        return why
    return OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), file)


def to_a_reader(main: Callable[[], int]) -> int:
    """What `main` returns; 141, as of other programs, if whoever reads its output has left, as
    `| head` does."""
    try:
        try:
            return main()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_left():
            raise
        # What is still in the buffer goes nowhere, or Python complains as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT


def _reader_left() -> bool:
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    return any(state & select.POLLERR for _, state in look.poll(0))
