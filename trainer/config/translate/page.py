"""Renews what docs/from-*.md take from the code: `python -m trainer.config.translate.page PAGE …`.

A page has the command of another trainer in a block that is fenced as ```sh before. Between its
marks come what `rollcall translate` says of that command, and the tables of flags.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from contract.options import markdown_table
from trainer.config.parity import distinct
from trainer.config.translate import openrlhf
from trainer.config.translate.__main__ import main
from trainer.config.translate.command import OPENRLHF, TRAINERS, TRL, VERL
from trainer.config.translate.rows import NOTHING, Row, Table
from trainer.config.translate.trl import LAUNCHER, VARIABLES
from trainer.config.translate.trl import TRL as TRL_TABLE
from trainer.config.translate.verl import FORK
from trainer.config.translate.verl import VERL as VERL_TABLE

BEFORE = re.compile(r"^```sh before\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAID, TABLES = ("translated", "tables")
"""The marks of a page: `<!-- NAME: from here -->`, `<!-- NAME: to here -->`."""


def renewed(page: str, trainer: str) -> str:
    """Return a page with the present translation and tables."""
    said = translation(command_of(page))
    return _between(_between(page, SAID, said), TABLES, tables(trainer))


def command_of(page: str) -> str:
    """Return the command of the other trainer in a page."""
    (command,) = BEFORE.findall(page)
    return str(command)


def translation(command: str) -> str:
    """Return both outputs of `rollcall translate` for a script."""
    out, err = io.StringIO(), io.StringIO()
    with TemporaryDirectory() as directory:
        script = Path(directory) / "before.sh"
        script.write_text(command)
        with redirect_stdout(out), redirect_stderr(err):
            main([str(script)])
    return blocks(out.getvalue(), err.getvalue())


def blocks(out: str, err: str) -> str:
    """Return both outputs as a page shows them."""
    return f"```sh\n{out}```\n\nStandard error says:\n\n```text\n{err}```\n"


def tables(trainer: str) -> str:
    """Return the tables of a trainer's flags."""
    made = {OPENRLHF: _openrlhf, VERL: _verl, TRL: _trl}[trainer]()
    return "\n".join(made)


def _between(page: str, name: str, text: str) -> str:
    begin, end = (f"<!-- {name}: {way} here -->" for way in ("from", "to"))
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page lacks {begin} or {end}")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def _verl() -> Iterator[str]:
    yield from _of_table(VERL_TABLE, "verl 0.9.1")
    yield "### Search-R1's keys\n"
    yield "Search-R1 is a program on an older verl. These keys are its own, or differ there.\n"
    yield from _counterparts([row for row in FORK if row.ours], "Search-R1")
    yield from _others([row for row in FORK if not row.ours], "Search-R1's key")


def _trl() -> Iterator[str]:
    own = [
        replace(row, old=row.old and row.theirs not in VARIABLES)
        for row in TRL_TABLE.rows
        if row not in LAUNCHER
    ]
    yield from _of_table(Table(TRL_TABLE.name, own), TRL_TABLE.name)
    yield "### Flags of the launchers\n"
    yield "They stand before a script, for accelerate, torchrun and deepspeed.\n"
    launcher = [replace(row, old=False) for row in LAUNCHER]
    yield from _counterparts([row for row in launcher if row.ours], "launcher")
    yield from _others([row for row in launcher if not row.ours], "launcher")


def _openrlhf() -> Iterator[str]:
    old = [replace(row, old=False) for row in openrlhf.OLD.rows]
    yield "### Flags of older releases\n"
    yield from _counterparts([row for row in old if row.ours], "OpenRLHF before 0.11")
    yield from _others([row for row in old if not row.ours], "OpenRLHF before 0.11")


def _of_table(table: Table, name: str) -> Iterator[str]:
    yield "### Flags with a counterpart\n"
    yield from _counterparts([row for row in table.rows if row.ours], name)
    yield "### Flags without a counterpart\n"
    yield f"A value other than the default of {name} is listed as lost.\n"
    yield from _others([row for row in table.rows if not row.ours and row.lost], name)
    yield "All other flags need none: the run is the same, and `rollcall translate` says why.\n"


def _counterparts(rows: Iterable[Row], name: str) -> Iterator[str]:
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(row.theirs, []).append(row)
    merged: dict[tuple[str, str], list[Row]] = {}
    for same in of.values():
        ours = " ".join(dict.fromkeys(f"`--{row.ours}`" for row in same))
        merged.setdefault((ours, _remark(same)), []).append(same[0])
    made = []
    for (ours, remark), alike in merged.items():
        names = " ".join(f"`{row.theirs}`" for row in alike)
        made.append((names, distinct(_theirs(row) for row in alike), ours, remark))
    yield markdown_table((name, "default", "here", "remark"), made)


def _remark(rows: Iterable[Row]) -> str:
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    if any(row.old for row in rows):
        notes.append("of other releases")
    return "; ".join(notes)


def _theirs(row: Row) -> str:
    return "–" if row.default is None or row.default in NOTHING else f"`{row.default}`"


def _others(rows: Iterable[Row], name: str) -> Iterator[str]:
    of: dict[str, list[str]] = {}
    for row in rows:
        of.setdefault(row.note, []).append(f"`{row.theirs}`")
    made = [(why, ", ".join(dict.fromkeys(names))) for why, names in of.items()]
    yield markdown_table(("why", name), made)


def trainer_of(path: Path) -> str:
    """Return the trainer of a page by the file's name. Raises ValueError."""
    name = path.stem.removeprefix("from-")
    if name not in TRAINERS:
        raise ValueError(f"{path}: give docs/from-TRAINER.md")
    return name


if __name__ == "__main__":
    for given in map(Path, sys.argv[1:]):
        given.write_text(renewed(given.read_text(), trainer_of(given)))
