"""Reads long files of lines in blocks: from a place on, or backwards from the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

BLOCK = 2**20
"""Bytes that are read at once."""


def forwards(file: IO[bytes], begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the lines from `begin` on, each with the offset of its end; the last may lack one."""
    end = file.seek(begin)
    for line in file:
        end += len(line)
        yield end, line


def backwards(file: IO[bytes], *, incomplete: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield the lines from the last to the first, each with the offset of its end.

    `incomplete`: what follows the last line break comes first; else it is left out.
    """
    begin = end = file.seek(0, os.SEEK_END)
    first, line_break = b"", b""
    while begin:
        size = min(BLOCK, begin)
        begin = file.seek(begin - size)
        first, *lines = (file.read(size) + first).split(b"\n")
        for line in reversed(lines):
            if line_break or (incomplete and line):
                yield end, line + line_break
            end -= len(line) + len(line_break)
            line_break = b"\n"
    if line_break or (incomplete and first):
        yield end, first + line_break
