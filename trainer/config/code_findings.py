"""What a trial of a user's code finds, and the file that its process writes it to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contract.options import ended
from env.types import brief


@dataclass(frozen=True, slots=True)
class Tried:
    """A completion, and what the user's code said of it."""

    what: str
    """The reward or the environment, as the user spells it."""
    row: int
    """Of the data, from 1."""
    completion: str
    score: float | None
    """None: it gave no score."""

    @property
    def scored(self) -> str:
        score = "no score" if self.score is None else f"{self.score:g}"
        return f"{brief(self.completion)} → {score}"


REWARD_OF_PYTHON = "reward="
"""Stands for the flag of a reward function of this process; its name is behind it."""
REWARDS_OF_PYTHON = "the functions of reward="


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is wrong with a user's code, or that could not be tried."""

    flag: str
    """The flag and its value; or REWARD_OF_PYTHON with a name; or REWARDS_OF_PYTHON."""
    problem: str
    place: str = ""
    """FILE:LINE of the user's code; empty if unknown."""
    refuses: bool = True
    """Whether the run would fail in the same way; else it is a warning."""
    package: str = ""
    """The module that is not installed here, if that is why."""
    of_here: bool = False
    """Whether another machine may have what the code lacks here."""
    remedy: str = ""
    """What to do, if it is not to correct the place."""
    unended_import: bool = False
    """The import of the file did not end: what it does first may not end in a run, either."""

    @property
    def argument(self) -> str:
        """Return the name of the flag, without dashes."""
        in_python = self.flag.startswith((REWARD_OF_PYTHON, REWARDS_OF_PYTHON))
        return "reward" if in_python else self.flag.split()[0].lstrip("-")

    def __str__(self) -> str:
        said = f"{self.flag}: {self.problem}"
        return f"{ended(said)} {self.advice(self.place)}" if self.refuses else said

    def advice(self, place: str) -> str:
        """Return what to do; `place` names what is to be corrected."""
        if self.remedy:
            return self.remedy
        install = f"Install {self.package}, or correct" if self.package else "Correct"
        return f"{install} {place or 'the code'}"


Found = Tried | Trouble


@dataclass(frozen=True, slots=True)
class CodeCheck:
    """All that was found."""

    tried: tuple[Tried, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    printed: tuple[str, ...] = ()
    """The first lines that the code itself printed."""

    @property
    def lines(self) -> list[str]:
        """Return a line for each row of each reward, and of the environment."""
        rows: dict[tuple[str, int], list[str]] = {}
        for one in self.tried:
            rows.setdefault((one.what, one.row), []).append(one.scored)
        scores = [f"{what}, row {row}: {', '.join(each)}" for (what, row), each in rows.items()]
        return [*scores, *(f"it printed: {line}" for line in self.printed)]

    @property
    def faults(self) -> list[str]:
        return [str(one) for one in self.refusals]

    @property
    def refusals(self) -> list[Trouble]:
        return [one for one in self.troubles if one.refuses]

    @property
    def warnings(self) -> list[str]:
        return [str(one) for one in self.troubles if not one.refuses]

    @property
    def unended_import(self) -> bool:
        return any(one.unended_import for one in self.troubles)


def of(found: Sequence[Found]) -> CodeCheck:
    """Return what was found, sorted by its kind."""
    return CodeCheck(
        tuple(one for one in found if isinstance(one, Tried)),
        tuple(one for one in found if isinstance(one, Trouble)),
    )


END = "end"


def write(file: Any, one: Found | None) -> None:
    """Append a finding to the file of results; None ends them."""
    row: Mapping[str, Any] = {"kind": END}
    if one is not None:
        row = {"kind": type(one).__name__, **asdict(one)}
    file.write(json.dumps(row) + "\n")
    file.flush()


def read(file: Path) -> list[Found | None]:
    """Return the findings in a file of results; None stands for their end."""
    kinds = {Tried.__name__: Tried, Trouble.__name__: Trouble}
    found: list[Found | None] = []
    lines = file.read_text().splitlines() if file.exists() else []
    for row in map(json.loads, lines):
        kind = kinds.get(row.pop("kind"))
        found.append(kind(**row) if kind else None)
    return found
