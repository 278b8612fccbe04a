"""Data sets as a flag names them, and the shares in which they are mixed. Torch-free."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar

from contract.files.os_errors import why_absent
from contract.options import Fault, MissingFile, UnfinishedFile

TRAIN = "train"
"""The split that is read if none is named."""
DATA_FILES = (".jsonl", ".json", ".parquet", ".csv", ".txt")
PARQUET = b"PAR1"
"""The first and the last bytes of a whole Parquet file."""
WRITING_SECONDS = 30.0
"""Seconds without a write after which a file counts as whole, however it ends."""
LONGEST_ROW = 2**20
"""Bytes of a row that are read to see whether it is whole."""
CUT = re.compile(
    r"|t(ru?)?|f(a(ls?)?)?|n(ul?)?|N(a)?|-|\.|[eE][-+]?|\\?u?[0-9a-fA-F]{0,4}", re.DOTALL
)
"""What is left of a JSON value whose end is cut off, behind what was read of it."""
HUB_NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(:[\w.-]+)?")
"""owner/name, perhaps with a configuration."""


def is_hub_name(name: str) -> bool:
    """Return whether a data set that is not on this disk may be one of the hub."""
    named = HUB_NAME.fullmatch(name)
    if named is None or Path(named["repository"]).suffix in DATA_FILES:
        return False
    return why_absent(Path(name)) is not None


@dataclass(frozen=True, slots=True)
class DataSets:
    """One or more data sets. Raises ValueError if the text names none between two commas."""

    text: str = field(compare=False)
    names: tuple[str, ...] = ()
    """Absolute paths, as workers may run elsewhere, and names on the hub."""
    DESCRIBED: ClassVar[str] = "data sets separated by commas"

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", tuple(map(_located, _parted(self.text))))

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.names))

    @property
    def on_disk(self) -> tuple[Path, ...]:
        """The data sets that are not the hub's."""
        return tuple(path for path in self.paths if path.is_absolute())

    @property
    def are_files(self) -> bool:
        """Whether none of them has splits."""
        return all(path.suffix in DATA_FILES for path in self.paths)

    def __str__(self) -> str:
        return ",".join(self.names)


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of several data sets. Raises ValueError for what is not a number above 0."""

    text: str
    DESCRIBED: ClassVar[str] = "numbers above 0 separated by commas, one for each data set"

    def __post_init__(self) -> None:
        if not all(math.isfinite(share) and share > 0 for share in self.numbers):
            raise ValueError(self.text)

    @property
    def numbers(self) -> tuple[float, ...]:
        return tuple(map(float, self.text.split(",")))

    def __str__(self) -> str:
        return self.text


def missing(flag: str, path: Path) -> Iterator[MissingFile]:
    """Yield a fault if a data set is not there, or not yet whole."""
    if why := why_absent(path):
        remedy = "Give a path that all nodes see, or a data set of the hub as owner/name"
        yield MissingFile(flag, str(path), why, remedy)
    elif is_being_written(path):
        problem = "is still being written: its last row is incomplete"
        yield UnfinishedFile(flag, str(path), problem, "Wait until it is whole")


def is_being_written(path: Path) -> bool:
    """Return whether a file was written to a moment ago and ends within a row."""
    try:
        if not path.is_file() or time.time() - path.stat().st_mtime > WRITING_SECONDS:
            return False
        with path.open("rb") as file:
            end = _last_row(file)
    except OSError:
        return False
    if path.suffix == ".parquet":
        return bool(end) and not end.endswith(PARQUET)
    return path.suffix in (".jsonl", ".json") and _is_cut(end)


def _last_row(file: BinaryIO) -> bytes:
    """Return what follows the last line break, or its end if it is very long."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LONGEST_ROW))
    return file.read().rpartition(b"\n")[2]


def _is_cut(row: bytes) -> bool:
    """Return whether a row of JSON goes on where the file ends; other faults are the row's own."""
    try:
        json.loads(row or b"{}")
    except json.JSONDecodeError as error:
        rest = error.doc[error.pos :]
        return error.msg.startswith("Unterminated string") or bool(CUT.fullmatch(rest))
    except UnicodeDecodeError as error:
        return error.end == len(row)  # cut within a character
    except (ValueError, RecursionError):
        return False
    return False


def faults(flag: str, given: DataSets | None, shares: Shares | None = None) -> Iterator[Fault]:
    """Yield what is wrong with the data sets of a flag and with their shares."""
    for path in given.on_disk if given else ():
        yield from missing(flag, path)
    if given is None or shares is None:
        return
    numbers, sets = len(shares.numbers), len(given.names)
    if numbers == sets:
        return
    problem = f"{flag} names {sets} data sets, and here is another number of shares: {numbers}"
    remedy = "Give one number for each data set, or leave the flag out: all rows are then used"
    yield Fault(f"{flag}_probs", shares.text, problem, remedy)


def _parted(text: str) -> list[str]:
    if why_absent(Path(text)) is None:  # a path may have a comma
        return [text]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(text)
    return names


def _located(name: str) -> str:
    return name if is_hub_name(name) else str(Path(name).absolute())
