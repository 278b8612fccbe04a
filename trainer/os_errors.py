"""Errors of the system, each with the file that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def why_absent(path: Path) -> str | None:
    """Why there is nothing at `path` that this process can look at; None where there is."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


@contextmanager
def named(path: Path) -> Iterator[None]:
    """An OSError inside is about `path` where it names no file, as one of a read or a write."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
