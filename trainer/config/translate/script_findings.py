"""What comes of the arguments of a script: a finding for each, merged in their order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

Flags = Mapping[str, tuple[str, ...]]


class Kind(Enum):
    GIVEN = "the flag has these values"
    DROPPED = "no earlier value of the flag counts"
    UNTOLD = "what to give instead"
    UNREAD = "the same; only a run tells the flag's value, so no earlier one counts"
    ABSENT = "there is no counterpart"
    IDLE = "none is needed"


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    flag: str = ""
    """The sentence does not count if the command has this flag; "": it always counts."""
    said: str = ""
    values: tuple[str, ...] = ()


def give(flag: str, value: object) -> Finding:
    values = value if isinstance(value, list | tuple) else (value,)
    texts = (str(one).lower() if isinstance(one, bool) else str(one) for one in values)
    return Finding(Kind.GIVEN, flag, values=tuple(texts))


def values(findings: Iterable[Finding], typed: Flags) -> tuple[Flags, Mapping[str, str]]:
    """Return the flags that are given, and a sentence for each that is unread."""
    given: dict[str, tuple[str, ...]] = {}
    unread: dict[str, str] = {}
    for one in findings:
        if one.kind is Kind.GIVEN:
            unread.pop(one.flag, None)
            given[one.flag] = one.values
        elif one.kind is Kind.DROPPED:
            given.pop(one.flag, None)
        elif one.kind is Kind.UNREAD and one.flag and one.flag not in typed:
            given.pop(one.flag, None)
            unread[one.flag] = one.said
    return given, unread


def sentences(findings: Iterable[Finding], typed: Flags, *kinds: Kind) -> dict[str, None]:
    """Return the sentences of these kinds, each once."""
    return {one.said: None for one in findings if one.kind in kinds and one.flag not in typed}
