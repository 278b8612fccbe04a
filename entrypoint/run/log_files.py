"""The log files of a run, read piece by piece, as a program that follows them does."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 2**18
"""Limit for one piece."""


class Piece(NamedTuple):
    text: str
    offset: int
    """Where the next piece begins, in bytes."""


def names(directory: Path) -> list[str]:
    """Return the names of the logs, without their suffix; [] if there is no directory."""
    return sorted((path.stem for path in directory.glob("*.log")), key=_in_order)


def read(directory: Path, name: str, offset: int) -> Piece:
    """Return what follows `offset` bytes; a negative offset counts from the end.

    A character that is still being written belongs to the next piece. Raises OSError.
    """
    with (directory / f"{name}.log").open("rb") as file:
        size = file.seek(0, 2)
        start = file.seek(max(0, size + offset) if offset < 0 else min(offset, size))
        data = file.read(MOST_BYTES)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    return Piece(text, start + len(data) - len(decoder.getstate()[0]))


def _in_order(name: str) -> list[tuple[int, str]]:
    """A sort key that puts attempt-10 after attempt-9."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]
