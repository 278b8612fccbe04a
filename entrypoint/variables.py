"""What one variable of the environment is, what a fault in it is, and what of it may be shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

MASK = "********"
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
    """What to do, as an imperative: "give 0, 1, 2 or more"."""

    def __str__(self) -> str:
        subject = self.variable if self.value is None else f"{self.variable}={self.value!r}"
        return f"{subject} {self.problem}: {self.remedy}."


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


SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)
SECRET_OPTION = re.compile(
    r"((?<![\w.+/-])(?:-[\w.+/-]*{0}\s+|[\w.+/-]*{0}\s*=\s*))"
    r"""(?!-)("[^"]*"|'[^']*'|\S+)""".format("(?:key|token|secret|password|passwd|use_wandb)"),
    re.IGNORECASE,
)
SHORTEST_SECRET = 6
"""Shorter ones, `true` for one, would be masked in the middle of other words."""
URL_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
NOT_SECRET_OPTION = re.compile(r"(?:input|label|output|metric|prompt|images?)_key", re.IGNORECASE)


def secret_texts(environ: Mapping[str, str]) -> frozenset[str]:
    """The values in `environ` that must not be shown, judged by their variables' names."""
    return frozenset(text.strip() for name, text in environ.items() if SECRET_NAME.search(name))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with `secrets`, URL passwords and the values of key and token options masked."""
    for known in sorted(secrets, key=len, reverse=True):
        if len(known) >= SHORTEST_SECRET:
            text = text.replace(known, MASK)
    text = URL_PASSWORD.sub(rf"\1:{MASK}@", text)
    return SECRET_OPTION.sub(_masked_option, text)


def _masked_option(match: re.Match[str]) -> str:
    return match[0] if NOT_SECRET_OPTION.search(match[1]) else match[1] + MASK


def shown(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` as a message may show it: redacted, and cut where it is long."""
    text = redact(text, secrets)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
