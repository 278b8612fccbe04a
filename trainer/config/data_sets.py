"""Data sets as a flag names them, and the shares in which they are mixed. Torch-free."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from contract.files.os_errors import why_absent
from trainer.config.schema import Fault, MissingFile

TRAIN = "train"
"""The split that is read if none is named."""
DATA_FILES = (".jsonl", ".json", ".parquet", ".csv", ".txt")
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
    """The shares of several data sets. Raises ValueError for what is no number above 0."""

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


def faults(flag: str, given: DataSets | None, shares: Shares | None = None) -> Iterator[Fault]:
    """Yield what is wrong with the data sets of a flag and with their shares."""
    for path in given.on_disk if given else ():
        if why := why_absent(path):
            remedy = "Give a path that all nodes see, or a data set of the hub as owner/name"
            yield MissingFile(flag, str(path), why, remedy)
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
