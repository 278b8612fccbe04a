"""The log files of a run and its journal, read in pieces, as a program that follows them does."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from contract.files import stored_json
from contract.files.plain_files import NotPlainError, open_plain, plain_names
from contract.run_dir import RunFiles

MOST_BYTES = 2**18
"""Limit for one piece."""


MOST_NAME_BYTES = 200
JOURNAL = "journal.jsonl"
"""The name under which the journal is read, too."""


class Piece(NamedTuple):
    text: str
    offset: int
    """Where the next piece begins, in bytes."""


def last_rows(path: Path, most: int, most_bytes: int = MOST_BYTES) -> list[dict[str, Any]]:
    """Return at most `most` JSON objects at the end of a file of lines, oldest first.

    `most_bytes`: how much of the file is read.

    Raises OSError, but not if there is no file.
    """
    try:
        with open_plain(path) as file:
            file.seek(max(0, file.seek(0, 2) - most_bytes))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    rows = []
    for line in lines[-1 - most :]:
        with suppress(ValueError):  # the first line may lack its beginning
            rows.append(stored_json.parsed(line))
    return [row for row in rows if isinstance(row, dict)][-most:]


def names(directory: Path) -> list[str]:
    """Return the names of the logs, without their suffix; [] if there is no directory.

    Raises OSError if the directory cannot be read.
    """
    try:
        files = plain_names(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((name[:-4] for name in files if name.endswith(".log")), key=_in_order)


def is_there(directory: Path, name: str) -> bool:
    """Return whether there is a log of this name. A name is not a path to another folder.

    Raises OSError.
    """
    is_name = not set("/\0") & set(name) and len(name.encode(errors="replace")) <= MOST_NAME_BYTES
    if name == JOURNAL or not is_name:
        return name == JOURNAL
    try:
        _opened(directory, name).close()
    except (FileNotFoundError, NotADirectoryError, NotPlainError):
        return False
    return True


def read(directory: Path, name: str, offset: int) -> Piece:
    """Return what follows `offset` bytes; a negative offset counts from the end.

    Beyond the end, the log was begun anew: its beginning follows. A character that is still being
    written belongs to the next piece. The journal of a job that has not begun is empty. Raises
    OSError.
    """
    try:
        file = _opened(directory, name)
    except FileNotFoundError:
        if name == JOURNAL:
            return Piece("", 0)
        raise
    with file:
        size = file.seek(0, 2)
        if offset > size:
            offset = 0
        start = file.seek(max(0, size + offset) if offset < 0 else offset)
        data = file.read(MOST_BYTES)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    return Piece(text, start + len(data) - len(decoder.getstate()[0]))


def _opened(directory: Path, name: str) -> BufferedReader:
    if name == JOURNAL:
        return open_plain(RunFiles(directory.parent).journal)
    return open_plain(directory / f"{name}.log", below=directory.parent)


def _in_order(name: str) -> list[tuple[int, str]]:
    """A sort key that puts attempt-10 after attempt-9."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]
