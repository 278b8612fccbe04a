"""Errors of the system, each with the file that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def named(path: Path) -> Iterator[None]:
    """An OSError inside is about `path` where it names no file, as one of a read or a write."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
