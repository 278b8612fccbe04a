"""The table of flags as docs/flags.md has it.

`python -m trainer.config.parity PAGE` renews it there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import Field
from pathlib import Path
from typing import Any

from trainer.config import values
from trainer.config.config import Config
from trainer.config.schema import Flag, flags_of

BEGIN, END = "<!-- flags: from here -->", "<!-- flags: to here -->"


def markdown() -> str:
    """One table for each concern: both spellings, the default, and what the flag does here."""
    groups: dict[str, list[str]] = {}
    for name, (field, about) in flags_of(Config).items():
        groups.setdefault(about.group, []).append(_row(name, field, about))
    return "\n".join(line for group, rows in groups.items() for line in _table(group, rows))


def _table(group: str, rows: list[str]) -> Iterator[str]:
    yield f"### {group[:1].upper()}{group[1:]}\n"
    yield "| flag | OpenRLHF 0.11 | default | here |"
    yield "|---|---|---|---|"
    yield from rows
    yield ""


def _row(name: str, field: Field[Any], about: Flag) -> str:
    flat = " ".join(f"`{one}`" for one in (name, *about.aliases))
    dotted = " ".join(f"`{one}`" for one in about.dotted_spellings) or "–"
    return f"| {flat} | {dotted} | {_default(field.default)} | {effect(about)} |"


def _default(value: Any) -> str:
    if value is None or value == "" or value == math.inf:
        return "–"
    return values.shown(value)


def effect(about: Flag) -> str:
    """What a flag does here, in a few words."""
    if about.no_effect:
        return f"no effect: {about.no_effect}"
    if about.unsupported:
        return f"not supported: {_continued(about.unsupported)}"
    return about.help


def _continued(sentence: str) -> str:
    """As it reads after a colon; a name like AdamW or PPO keeps its capitals."""
    first = sentence.partition(" ")[0]
    name = first[1:] != first[1:].lower()
    return sentence if name else f"{sentence[:1].lower()}{sentence[1:]}"


def renewed(page: str) -> str:
    """The page with today's table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown()}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text()))
