"""A variable of the environment, a fault in it, and the part of its value that may be shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from contract.options import Option
from contract.redaction import MASK, redact
from entrypoint.config.durations import as_setting

SHOWN_CHARACTERS = 120
LONGEST_PLACEHOLDER = 39
"""Characters. Keys of W&B have 40 and more."""
PLACEHOLDER = re.compile(
    r"[<>{}$*]|\.\.|…"
    r"|(?:^|[^a-z])(?:your?|my|insert|replace|change|put|paste|enter|wandb)(?:[^a-z]|$)"
    r"|(?:^|[_-])x{3,}$|^(?:0{3,}|key|none|null|todo|changeme|dummy|example|placeholder|secret|token)$"
    r"|(?:api|access|secret|auth|wandb)[-_ ]?(?:key|token)|(?:key|token)[-_ ]?here",
    re.IGNORECASE,
)
"""Matches what guides write where a key belongs: `your_wandb_api_key_here`, `{token}`, `...`."""


OF_THE_HUB = re.compile(r"hf_[A-Za-z0-9]{30,}")
"""Matches a token as Hugging Face issues it: 34 random characters, which may have any word."""
LEAST_CHARACTERS = 8
"""Different characters of a random token. A placeholder such as `hf_xxxx…` has fewer."""


def shown_placeholder(key: str) -> str:
    """Return a placeholder as it may be shown: one in brackets as it is, any other masked."""
    return key if key[:1] in "<{$[" else MASK


class Secret(str):
    """A text that is masked wherever it is printed or formatted. `reveal` returns the text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{MASK}'"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def reveal(self) -> str:
        return str.__str__(self)


def is_placeholder(key: str) -> bool:
    """Return whether `key` is what a guide writes in place of a key."""
    if OF_THE_HUB.fullmatch(key) and len(set(key)) > LEAST_CHARACTERS:
        return False
    return len(key) <= LONGEST_PLACEHOLDER and PLACEHOLDER.search(key) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable(Option):
    """How a setting is read from the environment."""

    parse: Callable[[str], Any] | None = None
    """Makes the value of the text, which is stripped and not empty; None: the parser of its type.

    Raises `ParseError`, whose message never repeats the text: that may be a secret.
    """
    shown_default: str
    replaces: tuple[str, ...] = ()
    """The platform's facts that the variable takes the place of."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, f"{self.name}_FILE") if self.secret else (self.name,)


def variable(name: str, meaning: str, *, default: Any = None, shown: str = "", **about: Any) -> Any:
    """Return a dataclass field that is read from a variable; `about`: other fields of Variable.

    `shown`: its default in the docs.
    """
    option = Variable(name=name, help=meaning, shown_default=shown or _shown(default), **about)
    return option.field(default)


def _shown(default: Any) -> str:
    """Return a default as a user would write it. A float is a duration."""
    if isinstance(default, bool):
        return str(int(default))
    if isinstance(default, float):
        return as_setting(default)
    return str(default or "–")


def shown(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` as a message may show it: redacted, and cut if it is long."""
    text = redact(text, secrets)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
