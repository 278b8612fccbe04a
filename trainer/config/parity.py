"""The tables of flags in docs/flags.md; `python -m trainer.config.parity PAGE` updates them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contract.options import markdown_table
from trainer.config import values
from trainer.config.config import Config
from trainer.config.schema import Declared, Flag, by_group

BEGIN, END = "<!-- flags: from here -->", "<!-- flags: to here -->"


def markdown(groups: Mapping[str, Iterable[Declared]]) -> str:
    """Return one table for each concern: both spellings, the default, and the flag's effect."""
    columns = ("flag", "OpenRLHF 0.11", "default", "here")
    return "\n".join(
        f"### {group[:1].upper()}{group[1:]}\n\n{markdown_table(columns, map(_row, _alike(flags)))}"
        for group, flags in groups.items()
    )


def _alike(flags: Iterable[Declared]) -> Iterable[list[Declared]]:
    """Return the flags one by one, but together those that have no effect for one reason."""
    alike: dict[str, list[Declared]] = {}
    for flag in flags:
        alike.setdefault(flag.about.no_effect or flag.name, []).append(flag)
    return alike.values()


def _row(flags: Sequence[Declared]) -> tuple[str, ...]:
    flat = " ".join(f"`{one}`" for flag in flags for one in (flag.name, *flag.about.aliases))
    dotted = " ".join(f"`{one}`" for flag in flags for one in flag.about.dotted_spellings) or "–"
    defaults = distinct(default(flag.default) for flag in flags)
    return flat, dotted, defaults, effect(flags[0].about)


def distinct(texts: Iterable[str]) -> str:
    """Return what all texts are, or all of them in their order."""
    listed = list(texts)
    return listed[0] if len(set(listed)) == 1 else ", ".join(listed)


def default(value: Any) -> str:
    """Return a default as a table shows it."""
    if value is None or value in ("", ()) or value == math.inf:
        return "–"
    return values.shown(value)


def effect(about: Flag) -> str:
    """Return what a flag does here, in a few words."""
    if about.no_effect:
        return f"no effect: {about.no_effect}"
    if about.unsupported:
        return f"not supported: {continued(about.unsupported)}"
    return about.help


def continued(sentence: str) -> str:
    """Return the sentence as it reads after a colon; a name like AdamW keeps its capitals."""
    first = sentence.partition(" ")[0]
    name = first[1:] != first[1:].lower()
    return sentence if name else f"{sentence[:1].lower()}{sentence[1:]}"


def renewed(page: str) -> str:
    """Return the page with the trainer's current tables between its marks."""
    return with_tables(page, markdown(by_group(Config)))


def with_tables(page: str, tables: str) -> str:
    """Return the page with these tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text()))
