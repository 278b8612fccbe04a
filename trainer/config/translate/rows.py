"""Another trainer's command, and what its translation is made of: a row for each flag."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Self

NOTHING = ("", "null", "None")
"""Values that stand for no value."""
TRUE, FALSE = "true", "false"
ON, OFF = (
    (TRUE, "1", "yes", "y", "on", "t"),
    (FALSE, "0", "no", "n", "off", "f", "", "none", "null"),
)
UNSET = "\ue000"
"""Stands for the dollar sign of a variable that a script does not set; the shell expands it."""


@dataclass(frozen=True, slots=True)
class Command:
    """Another trainer's command."""

    trainer: str
    given: Mapping[str, tuple[str, ...]]
    """Flag, or key of an override → its values."""
    strange: tuple[str, ...] = ()
    """Words that belong to no flag."""
    launcher: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The launcher's flags, such as --num_processes of accelerate."""
    program: str = ""
    exported: tuple[str, ...] = ()
    """Variables that the script exports."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """A variable, or an open piece, of the command's words that the script does not tell → what to
    give, and why."""
    untold: tuple[str, ...] = ()
    """Sentences on arguments that a Python script gives, with what to give instead."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """A flag whose value in the Python script is no constant → its sentence in `untold`."""
    absent: tuple[str, ...] = ()
    """Sentences on its arguments that have no counterpart."""
    idle: tuple[str, ...] = ()
    """Sentences on its arguments that need none."""
    first: tuple[str, ...] = ()
    """Sentences on what has to be there before it runs."""
    notes: tuple[str, ...] = ()
    """Sentences on lines that bash reads otherwise than their writer meant."""


def is_on(text: str) -> bool:
    """Return whether a switch is on. Raises ValueError for a word that is no switch's."""
    word = text.strip("'\"").lower()
    if word not in (*ON, *OFF):
        raise ValueError(text)
    return word in ON


class UnreadError(ValueError):
    """A value is needed that the script gives, and that only a run of it tells."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        """The flag."""


class Values(dict[str, str]):
    """The values of another trainer's flags: as they were given, else its defaults."""

    unread: Collection[str] = ()
    """Flags whose values cannot be read."""

    def text(self, name: str) -> str:
        """Return a flag's value; "" if it has none. Raises UnreadError."""
        if name in self.unread:
            raise UnreadError(name)
        return self.get(name, "")

    def has(self, name: str) -> bool:
        return self.text(name) not in NOTHING

    def on(self, name: str) -> bool:
        """Return whether a switch is on. Raises UnreadError for a word that is no switch's."""
        try:
            return is_on(self.text(name))
        except ValueError:
            raise UnreadError(name) from None

    def number(self, name: str) -> float:
        """Return a flag's number. Raises ValueError."""
        if UNSET in self.text(name):
            raise UnreadError(name)
        return float(self.text(name))

    def whole(self, name: str) -> int:
        """Return a flag's whole number. Raises ValueError."""
        number = self.number(name)
        if number != int(number):
            raise ValueError(name)
        return int(number)


@dataclass(frozen=True, slots=True)
class Unsaid:
    """No flag of ours says it."""

    why: str
    lost: bool
    """Whether the run is another one without it."""
    warns: bool = False
    """It has no effect there either, which its writer may not know."""


def absent(why: str) -> Unsaid:
    return Unsaid(why, lost=True)


def needless(why: str) -> Unsaid:
    return Unsaid(why, lost=False)


def idle(switch: str) -> Unsaid:
    """Return the answer to a value that the other trainer does not read without a switch."""
    return Unsaid(f"without effect in verl unless {switch} is on", lost=False, warns=True)


class Remarked(str):
    """The value of our flag, with a sentence on what it changes."""

    __slots__ = ("remark",)

    remark: str

    def __new__(cls, value: str, remark: str) -> Self:
        made = super().__new__(cls, value)
        made.remark = remark
        return made


Answer = str | Unsaid
Conversion = Callable[[str, Values], Answer]


def same(value: str, values: Values) -> Answer:
    return value


def switch(value: str, values: Values) -> Answer:
    return TRUE if is_on(value) else FALSE


def whole(value: str, values: Values) -> Answer:
    """Return a whole number, also if it was written as 15.0. Raises ValueError."""
    return shown(Values(it=value).whole("it"))


def number(value: str, values: Values) -> Answer:
    """Return the number as it was written. Raises ValueError."""
    float(value)
    return value


def chosen(**words: str) -> Conversion:
    """Return a conversion of words; a word that is not named has no counterpart."""

    def convert(value: str, values: Values) -> Answer:
        return words.get(value.replace("-", "_").lower()) or absent(f"{value} is absent here")

    return convert


def always(answer: Answer) -> Conversion:
    return lambda value, values: answer


def shown(value: float) -> str:
    return f"{value:g}" if value != int(value) else str(int(value))


def items(text: str) -> list[str]:
    """Return the values of a list as a command line has it: `[a,'b']` or `a`."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    return [part.strip(" '\"") for part in inner.split(",") if part.strip(" '\"")]


TRACKERS = ("mlflow", "swanlab", "trackio")
"""Loggers that --log_with takes under their own names."""


@dataclass(frozen=True, slots=True)
class Row:
    """A flag of another trainer, or all flags that match it: `actor.megatron.*`."""

    theirs: str
    ours: str = ""
    """A spelling of our flag; empty: none says it."""
    note: str = ""
    """What differs; without a flag: the reason."""
    by: Conversion = same
    """Without a flag of ours: which values are absent, and which needless."""
    default: str | None = None
    """Their default, as text; None: none, or another flag's value."""
    lost: bool = True
    """Without a flag of ours: whether another value than the default changes the run."""
    old: bool = False
    """Only earlier releases have it."""

    @property
    def is_pattern(self) -> bool:
        return "*" in self.theirs

    def answer(self, value: str, values: Values) -> Answer:
        """Return the value of our flag, or why there is none. Raises ValueError."""
        if self.ours or self.by is not same:
            return self.by(value, values)
        return Unsaid(self.note, self.lost)

    def matches(self, name: str) -> bool:
        return fnmatchcase(name, self.theirs)


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one trainer. Several rows may have the same flag of theirs, or of ours."""

    name: str
    rows: Sequence[Row]

    @property
    def defaults(self) -> dict[str, str]:
        return {row.theirs: row.default for row in self.rows if row.default is not None}

    def of(self, name: str) -> list[Row]:
        """Return the rows of a flag: its own, else the patterns that it matches."""
        own = [row for row in self.rows if row.theirs == name]
        return own or [row for row in self.rows if row.is_pattern and row.matches(name)][:1]

    def has(self, name: str) -> bool:
        """Return whether a flag of ours says it."""
        return any(row.ours for row in self.of(name))

    def having(self, name: str, rows: Sequence[Row]) -> Table:
        """Return the table with these rows instead of its own for the same flags."""
        instead = {row.theirs for row in rows}
        kept = [row for row in self.rows if row.theirs not in instead]
        return Table(name, (*rows, *kept))


def several(
    names: str, note: str, *, lost: bool = True, old: bool = False, default: str | None = None
) -> list[Row]:
    """Return rows of flags without a counterpart, for one reason."""
    return [Row(name, note=note, lost=lost, old=old, default=default) for name in names.split()]


def is_default(value: str, default: str | None) -> bool:
    """Return whether a value is the default, under any spelling of it."""
    if default is None:
        return value in NOTHING
    try:
        return float(value) == float(default)
    except ValueError:
        return value.strip("'\"").lower() == default.lower()


def needs_variable(value: str) -> str:
    """Return the name of the variable without which the value is unknown; "" if none."""
    found = re.search(rf"{UNSET}(?:\{{?|\(\(.*?)([A-Za-z_]\w*)", value)
    return found[1] if found else ""
