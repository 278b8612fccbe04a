"""The text of --help: flags grouped by concern, each with unit and default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING
from typing import Any

from trainer.config import values
from trainer.config.schema import Declared, by_group

WIDTH = 100
INDENT = 6


def help_text(config: type[Any], prog: str, description: str) -> str:
    """Return the whole help, concern by concern."""

    top = [
        f"usage: {prog} [--config FILE] [--FLAG VALUE …]",
        "",
        description,
        "",
        "  --config FILE",
        *_wrapped("flags from a YAML or TOML file; what the command line gives wins"),
    ]
    body = []
    for group, flags in by_group(config).items():
        body += ["", f"{group}:", *(line for flag in flags for line in _lines(flag))]
    return "\n".join(top + body)


def _lines(flag: Declared) -> Iterator[str]:
    about = flag.about
    shown = "{" + ",".join(about.words) + "}" if about.choices else values.word(flag.kind)
    if about.bare is not None:
        shown = f"[{shown}]"
    yield f"  --{flag.name} {shown}".rstrip()
    others = [f"--{other}" for other in (*about.aliases, *about.dotted_spellings)]
    if others:
        yield " " * INDENT + ", ".join(others)
    also = f"; --{about.follows} sets it too" if about.follows else ""
    yield from _wrapped(about.help + also + suffix(flag))
    if about.no_effect:
        yield from _wrapped(f"No effect here: {about.no_effect}.")
    if about.unsupported:
        yield from _wrapped(f"Not supported: {about.unsupported}.")


def _wrapped(text: str) -> list[str]:
    indent = " " * INDENT
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def suffix(flag: Declared) -> str:
    """Return unit and default, in brackets."""
    notes = [flag.about.unit] if flag.about.unit else []
    if flag.about.required:
        notes.append("required")
    elif flag.default not in (None, False, "", MISSING):
        notes.append(f"default {values.shown(flag.default)}")
    return f" ({', '.join(notes)})" if notes else ""
