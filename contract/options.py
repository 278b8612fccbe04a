"""One machine of options: a node's variables and the flags of a command are declared alike.

An option is a field of a frozen dataclass: the field has its type and its default, and in its
metadata an `Option`, which says the rest. `declared_in` lists the options of a dataclass. What both
sorts share when they are read is here, too: faults, words for yes and no, near names.
"""

from __future__ import annotations

import dataclasses
import difflib
import shlex
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from contract.exit_codes import ExitCode
from contract.redaction import redact, redact_here

TRUE = ("true", "yes", "on", "1")
FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The numbers that a setting takes. A bound that is None is none."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    def exceeded(self, number: float) -> str | None:
        """Return which bound `number` breaks, as a sentence's predicate; None if it is in range."""
        if self.at_least is not None and not number >= self.at_least:
            return f"must be at least {self.at_least:.9g}"
        if self.above is not None and not number > self.above:
            return f"must be greater than {self.above:.9g}"
        if self.at_most is not None and not number <= self.at_most:
            return f"must be at most {self.at_most:.9g}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Bounds):
    """What a setting means: a flag of a command, or a variable of a node."""

    help: str
    name: str = ""
    """Its spelling; the name of its field if empty."""
    secret: bool = False
    """Its value is never shown."""

    def field(self, default: Any) -> Any:
        """Return a dataclass field that holds the option; of a dict, each object has its own."""
        about = {"metadata": {"option": self}, "repr": not self.secret}
        if isinstance(default, dict):
            return dataclasses.field(default_factory=default.copy, **about)  # type: ignore[call-overload]
        return dataclasses.field(default=default, **about)  # type: ignore[call-overload]


OptionT = TypeVar("OptionT", bound=Option)


@dataclass(frozen=True, slots=True)
class Declared(Generic[OptionT]):
    """An option of a dataclass."""

    name: str
    path: tuple[str, ...]
    """Its field: of the dataclass, or of a dataclass that is its field."""
    kind: Any
    """The type of the field, without None."""
    default: Any
    about: OptionT

    def value_in(self, settings: Any) -> Any:
        for name in self.path:
            settings = getattr(settings, name)
        return settings


def declared_in(owner: type[Any], about: type[OptionT]) -> Iterator[Declared[OptionT]]:
    """Yield the options of a dataclass that are `about`, in their order."""
    kinds = typing.get_type_hints(owner)
    for own in dataclasses.fields(owner):
        if isinstance(option := own.metadata.get("option"), about):
            default = own.default if own.default_factory is MISSING else own.default_factory()
            name = option.name or own.name
            yield Declared(name, (own.name,), plain(kinds[own.name]), default, option)


def plain(kind: Any) -> Any:
    """`X | None` → X."""
    if isinstance(kind, types.UnionType):
        return next(part for part in typing.get_args(kind) if part is not types.NoneType)
    return kind


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one setting, and its remedy."""

    path: str
    """The setting as the user spells it: a variable, `--flag`, or `FILE: key`."""
    value: str | None
    """The value as given, secrets masked; None or empty if there is none to show."""
    problem: str
    """What is wrong, as the sentence's predicate: "is not a whole number"."""
    remedy: str
    """What to do; empty if `problem` says all."""

    def __str__(self) -> str:
        return redact(self._sentence())

    def _sentence(self) -> str:
        if not self.remedy:
            return self.problem
        if self.path.isidentifier() and self.path.isupper():  # a variable, as a shell assigns it
            subject = self.path if self.value is None else f"{self.path}={self.value!r}"
            return ended(f"{subject} {self.problem}: {self.remedy}")
        given = f" (given: {self.value})" if self.value else ""
        return f"{ended(f'{self.path}: {self.problem}{given}')} {self.remedy}"


@dataclass(frozen=True, slots=True)
class MissingFile(Fault):
    """A file that a command line names and that this machine lacks or cannot read now."""

    flags_from: tuple[str, ...] = ()
    """The files of flags of the command line: a path of one is not read from its directory."""

    def __str__(self) -> str:
        return str(self.with_place())

    def with_place(self) -> Fault:
        """Return the fault with where the file is, or one with a near name, in its remedy."""
        said = self.remedy or self.problem
        if elsewhere := self._elsewhere(Path(self.value or "")):
            said = f"{ended(said)} {elsewhere}"
        parts = (self.problem, said) if self.remedy else (said, "")
        return Fault(self.path, self.value, *parts)

    def _elsewhere(self, path: Path) -> str:
        try:
            if elsewhere := self._beside_flags(path):
                return elsewhere
            beside = [] if path.exists() else [one.name for one in path.parent.iterdir()]
        except (OSError, ValueError):
            return ""
        near = nearest(path.name, beside, cutoff=MISTYPED)
        return f"In {path.parent} there is {near}" if near else ""

    def _beside_flags(self, path: Path) -> str:
        """Return where the file is if its path is meant from a file of flags; else ""."""
        if path.is_absolute() or not self.value or path.exists():
            return ""
        directories = dict.fromkeys(Path(file).parent for file in self.flags_from)
        found = [one for one in directories if one != Path() and (one / path).exists()]
        if not found:
            return ""
        return (
            f"Relative paths are read from the working directory: {path.absolute()} is not there. "
            f"{found[0] / path} is: give that, or type `cd {shlex.quote(str(found[0]))}` first"
        )


class UnknownName(Fault):
    """A flag that no command of this kind has, and that resembles none."""


class MissingFlag(Fault):
    """A flag that is required and not given."""


class UnfinishedFile(MissingFile):
    """A data file that another program is still writing."""


class ConfigError(ValueError):
    """The settings cannot be used; `faults` holds every fault, and the text all of them."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)
        self.exit_code = ExitCode.USAGE
        """The exit code that a command would have ended with."""


def ended(sentence: str) -> str:
    """Return a sentence with its full stop, unless it has an end of its own, such as a question."""
    text = sentence.rstrip()
    return text if text.endswith((".", "?", "!")) else f"{text}."


class ParseError(ValueError):
    """A parser cannot use the text."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}: {remedy}")


def boolean(text: str) -> bool:
    """Return what a word for yes or no means. Raises ParseError."""
    if (word := text.lower()) in TRUE + FALSE:
        return word in TRUE
    raise ParseError("is neither yes nor no", "give 1, true, yes or on; or 0, false, no or off")


MISTYPED = 0.75
"""difflib's ratio from which a flag counts as a mistyped one."""


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known name that is most like `name`; empty if none is.

    `cutoff`: difflib's ratio from which a name counts.
    """
    return next(iter(difflib.get_close_matches(name, list(known), 1, cutoff)), "")


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, begin: str = "", cutoff: float = 0.6
) -> str:
    """Return the question whether the nearest known name was meant; `otherwise` without one.

    `begin`: what stands before the question.
    """
    near = nearest(name, known, cutoff=cutoff)
    return f"{begin}did you mean {near}?" if near else otherwise


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, as the pages on options have it; the last line is ended, too."""
    lines = [columns, *rows]
    head, *body = (f"| {' | '.join(cells)} |\n" for cells in lines)
    return "".join([head, f"{'|---' * len(columns)}|\n", *body])


def fail(error: object, code: ExitCode = ExitCode.USAGE) -> ExitCode:
    """Print why a program ends, with every fault, on standard error; return its exit code."""
    print(redact_here(str(error)), file=sys.stderr)
    return code
