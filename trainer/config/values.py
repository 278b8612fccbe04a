"""Converts the texts of a flag to a value of the type of its field."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from contract.options import boolean, plain

MANY = 1_000_000


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
        return tuple(_single(part, text) for text in texts)
    (text,) = texts
    return _single(kind, text)


def _single(kind: Any, text: str) -> Any:
    if kind is bool:
        return boolean(text)
    if kind is Path:
        return Path(text).absolute()
    return kind(text)


def most(kind: Any) -> int:
    """Return how many texts a value of type `kind` takes at most."""
    kind = plain(kind)
    return _parts(kind)[2] if typing.get_origin(kind) is tuple else 1


def word(kind: Any) -> str:
    """Return what --help calls a value of type `kind`."""
    kind = plain(kind)
    if kind is bool:
        return ""
    if typing.get_origin(kind) is tuple:
        part, least, most = _parts(kind)
        return f"{word(part)} …" if most == MANY else " ".join([word(part)] * least)
    return {int: "INT", float: "NUMBER", Path: "PATH", PurePath: "PATH"}.get(kind, "TEXT")


def described(kind: Any) -> str:
    """Return the type for a sentence that begins with "must be"."""
    kind = plain(kind)
    if typing.get_origin(kind) is tuple:
        part, least, most = _parts(kind)
        many = "numbers" if part in (int, float) else "texts"
        return f"one or more {many}" if most == MANY else f"{least} {many}"
    if kind in (Path, PurePath):
        return "a path"
    names = {bool: "true or false", int: "a whole number", float: "a number"}
    return names.get(kind) or str(getattr(kind, "DESCRIBED", "a text"))


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
