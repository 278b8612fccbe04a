"""What --help says of a dataclass of flags: grouped by concern, with unit and default."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field
from typing import Any

from trainer.config import values
from trainer.config.schema import Flag, flags_of

WIDTH = 100
INDENT = 6


def help_text(config: type[Any], prog: str, description: str) -> str:
    """The whole help, one group after the other in the order of their first flags."""
    groups: dict[str, list[str]] = {}
    kinds = typing.get_type_hints(config)
    for name, (field, about) in flags_of(config).items():
        groups.setdefault(about.group, []).extend(_lines(name, field, about, kinds[name]))
    top = [
        f"usage: {prog} [--config FILE] [--FLAG VALUE …]",
        "",
        description,
        "",
        "  --config FILE",
        *_wrapped("flags from a YAML or TOML file; what the command line gives wins"),
    ]
    body = [line for group, lines in groups.items() for line in ("", f"{group}:", *lines)]
    return "\n".join(top + body)


def _lines(name: str, field: Field[Any], about: Flag, kind: Any) -> Iterator[str]:
    shown = "{" + ",".join(about.choices) + "}" if about.choices else values.word(kind)
    if about.bare is not None:
        shown = f"[{shown}]"
    yield f"  --{name} {shown}".rstrip()
    others = [f"--{other}" for other in (*about.aliases, *about.dotted_spellings)]
    if others:
        yield " " * INDENT + ", ".join(others)
    also = f"; --{about.follows} sets it too" if about.follows else ""
    yield from _wrapped(about.help + also + suffix(field, about))
    if about.no_effect:
        yield from _wrapped(f"No effect here: {about.no_effect}.")
    if about.unsupported:
        yield from _wrapped(f"Not supported: {about.unsupported}.")


def _wrapped(text: str) -> list[str]:
    indent = " " * INDENT
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def suffix(field: Field[Any], about: Flag) -> str:
    """Unit and default, in brackets."""
    notes = [about.unit] if about.unit else []
    if about.required:
        notes.append("required")
    elif field.default not in (None, False, "", MISSING):
        notes.append(f"default {values.shown(field.default)}")
    return f" ({', '.join(notes)})" if notes else ""
