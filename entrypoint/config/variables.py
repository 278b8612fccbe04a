"""What one variable of the environment is, what a fault in it is, and what of it may be shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from contract.redaction import MASK, redact

SHOWN_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with one variable, and what would be right."""

    variable: str
    value: str | None
    """As given, secrets masked; None where the variable is not set."""
    problem: str
    """What is wrong, as the sentence's predicate: "is not a whole number"."""
    remedy: str
    """What to do, as an imperative: "give 0, 1, 2 or more"; empty where `problem` says all."""

    def __str__(self) -> str:
        subject = self.variable if self.value is None else f"{self.variable}={self.value!r}"
        return f"{subject} {self.problem}: {self.remedy}." if self.remedy else self.problem


class SettingsError(Exception):
    """The settings cannot be used; `faults` says everything that is wrong with them."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


class ParseError(ValueError):
    """A parser's answer to a text that it cannot use."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}: {remedy}")


class Secret(str):
    """A text that is masked wherever it is printed or formatted; `reveal` gives it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{MASK}'"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def reveal(self) -> str:
        return str.__str__(self)


@dataclass(frozen=True, slots=True)
class Variable:
    """How one setting is read; lies in the metadata of its field.

    `parse` takes the variable's text, stripped and not empty, and returns the value or raises
    `ParseError`. It never repeats the text, as that may be a secret.
    """

    name: str
    parse: Callable[[str], Any]
    meaning: str
    default: Any
    shown_default: str
    secret: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, f"{self.name}_FILE") if self.secret else (self.name,)


def variable(
    name: str,
    parse: Callable[[str], Any],
    meaning: str,
    *,
    default: Any = None,
    shown: str | None = None,
    secret: bool = False,
) -> Any:
    """A dataclass field read from the variable `name`; `shown` is its default in the README."""
    shown_default = ("–" if default is None else str(default)) if shown is None else shown
    declaration = Variable(name, parse, meaning, default, shown_default, secret)
    return dataclass_field(metadata={"variable": declaration})


def shown(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` as a message may show it: redacted, and cut where it is long."""
    text = redact(text, secrets)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
