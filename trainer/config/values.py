"""Converts the texts of a flag to a value of the type of its field."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar, NamedTuple

from contract.files import stored_json
from contract.options import Bounds, boolean, plain

MANY = 1_000_000
ANY = Bounds()


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object. Raises ValueError if the text is none."""

    text: str = "{}"
    DESCRIBED: ClassVar[str]
    """The object, for a sentence that begins with "must be"."""

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict):
            raise ValueError(self.text)

    @property
    def values(self) -> dict[str, Any]:
        try:
            read: dict[str, Any] = json.loads(self.text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        return read

    def __str__(self) -> str:
        return self.text


class Arguments(JsonObject):
    """Keyword arguments of an environment."""

    __slots__ = ()
    DESCRIBED = 'a JSON object of keyword arguments such as {"topk": 3}'


class Resources(JsonObject):
    """Amounts of resources by name."""

    __slots__ = ()
    DESCRIBED = 'a JSON object such as {"v100": 1}, of positive numbers, no GPU, CPU'

    def __post_init__(self) -> None:
        JsonObject.__post_init__(self)
        for name, amount in self.values.items():
            counted = isinstance(amount, int | float) and not isinstance(amount, bool)
            if not counted or amount <= 0 or name in ("", "GPU", "CPU", "memory"):
                raise ValueError(name)


def convert(kind: Any, texts: Sequence[str]) -> Any:
    """Return `texts` as a value of type `kind`. Raises ValueError if they are no such value.

    A Path becomes absolute, as actors may have another working directory. A PurePath stays as it
    is: if it is relative, it is below the run directory.
    """
    kind = plain(kind)
    if typing.get_origin(kind) is tuple:
        part, least, most = _parts(kind)
        if not least <= len(texts) <= most:
            raise ValueError
        return tuple(_kind(part).parse(text) for text in texts)
    (text,) = texts
    return _kind(kind).parse(text)


def whole_number(text: str) -> int:
    """Return a number that every program reads exactly from JSON. Raises ValueError."""
    number = int(text)
    if abs(number) > stored_json.LARGEST:
        raise ValueError(text)
    return number


class _Kind(NamedTuple):
    """How values of a type are written and read."""

    word: str
    """What --help calls a value."""
    described: str
    """A value, for a sentence that begins with "must be"."""
    parse: Callable[[str], Any]


KINDS: Mapping[Any, _Kind] = {
    bool: _Kind("", "true or false", boolean),
    int: _Kind("INT", "a whole number", whole_number),
    float: _Kind("NUMBER", "a number", float),
    Path: _Kind("PATH", "a path", lambda text: Path(text).absolute()),
    PurePath: _Kind("PATH", "a path", PurePath),
}


def _kind(kind: Any) -> _Kind:
    return KINDS.get(kind) or _Kind("TEXT", getattr(kind, "DESCRIBED", "a text"), kind)


def most(kind: Any) -> int:
    """Return how many texts a value of type `kind` takes at most."""
    kind = plain(kind)
    return _parts(kind)[2] if typing.get_origin(kind) is tuple else 1


def word(kind: Any) -> str:
    """Return what --help calls a value of type `kind`."""
    kind = plain(kind)
    if typing.get_origin(kind) is tuple:
        part, least, most = _parts(kind)
        return f"{word(part)} …" if most == MANY else " ".join([word(part)] * least)
    return _kind(kind).word


def described(kind: Any, bounds: Bounds = ANY) -> str:
    """Return the type for a sentence that begins with "must be"; of an integer, with its bounds."""
    kind = plain(kind)
    if kind is int:
        begin = "up" if bounds.at_least is None else f"from {bounds.at_least:.9g}"
        end = "2^53" if bounds.at_most is None else f"{bounds.at_most:.9g}"
        return f"{_kind(kind).described} {begin} to {end}"
    if typing.get_origin(kind) is tuple:
        part, least, most = _parts(kind)
        many = "numbers" if part in (int, float) else "texts"
        return f"one or more {many}" if most == MANY else f"{least} {many}"
    return _kind(kind).described


def shown(value: Any) -> str:
    """Return a value as a user types it."""
    if isinstance(value, tuple):
        return " ".join(shown(part) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parts(kind: Any) -> tuple[Any, int, int]:
    """Return a tuple type's element type, and the fewest and most elements."""
    parts = typing.get_args(kind)
    if parts[-1] is Ellipsis:
        return parts[0], 1, MANY
    return parts[0], len(parts), len(parts)
