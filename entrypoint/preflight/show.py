"""Shows a report of preflight to people: a table on a terminal, else one line for each check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from contract.journal import timestamp
from contract.redaction import redact
from contract.run_dir import RunFiles, write_atomically
from entrypoint.config.settings import Settings
from entrypoint.preflight.check import Report, Result
from entrypoint.preflight.verdict import Verdict

if TYPE_CHECKING:
    from rich.table import Table

MOST_CHARACTERS = 600
"""Limit for what a node says of one check to the head."""
LONG_WORD = 100
"""A word of so many characters may be cut within it."""
COLOURS = {
    Verdict.PASS: "green",
    Verdict.WARN: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.SKIP: "dim",
}


LAST = (Verdict.PASS, Verdict.SKIP, Verdict.WARN, Verdict.FAIL)


def show_report(report: Report, write_line: Callable[[str], object], *, on_terminal: bool) -> None:
    """Print a table on a terminal; else give each line to `write_line`.

    What failed comes last, where the reader's eyes are.
    """
    report = replace(report, results=sorted_by_need(report.results))
    if on_terminal:
        from rich.console import Console

        Console().print(table(report))
    else:
        for line in lines(report):
            write_line(line)


def sorted_by_need(results: Iterable[Result]) -> tuple[Result, ...]:
    """Return the results as they are, with warnings behind them, and failures last."""
    return tuple(sorted(results, key=lambda result: LAST.index(result.verdict)))


def say_report(report: Report, write_line: Callable[[str], object], *, on_terminal: bool) -> None:
    """Say what is not well, failures last, and how many checks passed."""
    not_well = replace(report, results=(*report.warnings, *report.fails))
    if report.fails:
        show_report(not_well, write_line, on_terminal=on_terminal)
    else:
        for line in lines(not_well):
            write_line(line)
    if report.results:
        write_line(summary(report))


def keep_report(report: Report, settings: Settings) -> None:
    """Write the whole report, if it has results, into the run directory. Raises OSError."""
    if report.results:
        path = RunFiles(settings.run_dir).logs / f"preflight-{settings.node_name}.txt"
        text = "\n".join([timestamp(), *lines(report)]) + "\n"
        write_atomically(path, redact(text, settings.secrets))


def summary(report: Report) -> str:
    """preflight: 17 passed, 1 warning, 9 skipped (rollcall doctor shows all)"""
    count = Counter(result.verdict for result in report.results)
    passed, warned, skipped = count[Verdict.PASS], count[Verdict.WARN], count[Verdict.SKIP]
    failed = count[Verdict.FAIL]
    parts = [f"{passed} passed"]
    parts += [f"{warned} warning{'s' if warned > 1 else ''}"] if warned else []
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{skipped} skipped"] if skipped else []
    return f"preflight: {', '.join(parts)} (rollcall doctor shows all)"


def not_well(report: Report, secrets: Iterable[str] = ()) -> dict[str, str]:
    """Return what a node says of itself to the head: each check that did not pass, in a line.

    What the node's start ends is left out: no node at work has it.
    """
    results = [*report.fails, *report.warnings]
    found = replace(report, results=[one for one in results if not one.ends_with_start])
    return {
        result.name: _one_line(redact(line, secrets))
        for result, line in zip(found.results, lines(found), strict=True)
    }


def _one_line(text: str) -> str:
    printable = "".join(one if one.isprintable() else " " for one in text)
    line = " ".join(printable.split())
    if len(line) <= MOST_CHARACTERS:
        return line
    cut = line[: MOST_CHARACTERS - 2]
    before, _, word = cut.rpartition(" ")
    return f"{before if len(word) < LONG_WORD else cut} …"


def failed_names(report: Report) -> str:
    return ", ".join(result.name for result in report.fails)


def lines(report: Report) -> list[str]:
    """One line for each check."""
    return [
        f"{result.verdict.upper():<4} {result.name}: {result.evidence}"
        + (f" → {result.remedy}" if result.remedy else "")
        for result in _merged(report)
    ]


def table(report: Report) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("check", "verdict", "evidence", "remedy", title="Preflight")
    for result in _merged(report):
        verdict = Text(result.verdict.value, style=COLOURS[result.verdict])
        table.add_row(result.name, verdict, Text(result.evidence), Text(result.remedy))
    return table


def _merged(report: Report) -> list[Result]:
    """The results; skipped checks of one group with the same evidence become one result."""
    merged: list[Result] = []
    for skipped, results in groupby(report.results, key=_group_and_reason):
        several = list(results)
        if skipped is not None and len(several) > 1:
            group, _ = skipped
            merged.append(replace(several[0], name=f"{group}.* ({len(several)} checks)"))
        else:
            merged += several
    return merged


def _group_and_reason(result: Result) -> tuple[str, str] | None:
    """Group and evidence of a skipped check; None for any other."""
    if result.verdict is not Verdict.SKIP:
        return None
    return result.name.partition(".")[0], result.evidence
