"""`rollcall report RUN`: the flight record of a run, or of a cluster's jobs, such as the stages of
a pipeline; needs no head and no settings. `report RUN RUN` compares runs."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contract.exit_codes import ExitCode
from contract.files.os_errors import with_path
from contract.run_dir import RunFiles, write_atomically
from entrypoint.commands import found_secrets
from entrypoint.commands.arguments import Parser, fail
from entrypoint.commands.found_run import run_of
from entrypoint.commands.named_run import lack, meant
from entrypoint.commands.node_shell import UnnamedRunError
from entrypoint.run import comparison, run_facts
from entrypoint.run.attempt_ends import HEAD_LOST
from entrypoint.run.flight_record import html, read_run, text
from entrypoint.run.flight_record.read_run import Part
from entrypoint.run.flight_record.record import RUNNING, NothingToReportError
from entrypoint.run.shown_path import shown

WHY = ("cause", "place", "to_do", "resume", "log", "model", "best_policy", "newest_checkpoint")
"""What the end of a run adds to its record."""
LEAST_FREE = 2**20
"""Bytes of storage below which a head does not write."""


def main(arguments: Sequence[str]) -> int:
    options = parser().parse(arguments)
    if len(options.runs) > 1:
        return _compare(options)
    try:
        run = RunFiles(meant(options.runs[0]) if options.runs else run_of(os.environ))
    except UnnamedRunError as error:
        return fail(str(error), ExitCode.USAGE, as_json=options.json)
    try:
        if not run.journal.is_file():
            return fail(lack(str(run.root)), ExitCode.USAGE, as_json=options.json)
        secrets = found_secrets.of(run, os.environ)
        jobs = read_run.of_jobs(run, secrets)
        own = _own(run, secrets, needed=not jobs)
        if options.html:
            parts = [*([own] if own else []), *jobs]
            _write(options.html, html.page(run_facts.read(run)["name"], parts))
    except NothingToReportError as error:
        return fail(f"{shown(run.root)}: {error}", ExitCode.RUN_DIR, as_json=options.json)
    except OSError as error:
        sentence = f"{error.filename}: {error.strerror}"
        return fail(sentence, ExitCode.RUN_DIR, as_json=options.json)
    if options.json:
        rows = {"jobs": [_row(job) for job in jobs]} if jobs else {}
        print(json.dumps({**(_record(own) or {} if own else {}), **rows}))
    else:
        page = [f"the page: {shown(options.html)}"] if options.html else []
        full = _full(run, own) if own else []
        print("\n".join([*(_lines(own) if own else []), *full, *_lines_of_jobs(jobs), *page]))
    return ExitCode.FINISHED


def _compare(options: argparse.Namespace) -> int:
    """Print the runs side by side."""
    if options.html or len(options.runs) > comparison.MOST_RUNS:
        sentence = f"{comparison.MOST_RUNS} runs at most are compared"
        if options.html:
            sentence = "--html is of one run: leave it out, or give one RUN"
        return fail(sentence, ExitCode.USAGE, as_json=options.json)
    found = []
    for path in options.runs:
        run = RunFiles(meant(path))
        try:
            if not run.journal.is_file():
                return fail(lack(str(path)), ExitCode.USAGE, as_json=options.json)
            found.append(comparison.read(run))
        except NothingToReportError as error:
            return fail(f"{shown(path)}: {error}", ExitCode.RUN_DIR, as_json=options.json)
        except OSError as error:
            sentence = f"{error.filename}: {error.strerror}"
            return fail(sentence, ExitCode.RUN_DIR, as_json=options.json)
    row = comparison.of(found)
    width = shutil.get_terminal_size().columns
    print(json.dumps(row) if options.json else "\n".join(comparison.lines(row, width)))
    return ExitCode.FINISHED


def _write(path: Path, page: str) -> None:
    """Raises OSError. A link, a pipe or a device, such as /dev/stdout, stays what it is."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with with_path(path):
            path.write_text(page)
    else:
        write_atomically(path, page)


def _own(run: RunFiles, secrets: Iterable[str], *, needed: bool) -> Part | None:
    """Return the run directory's own run; None for a cluster with its head, which only has jobs.

    Raises OSError, and NothingToReportError if it is `needed`.
    """
    try:
        own = read_run.of_run(run, secrets)
    except NothingToReportError:
        if needed:
            raise
        return None
    has_more = own.state == HEAD_LOST or (own.record and own.record.attempts)
    return own if needed or has_more else None


def _record(part: Part) -> dict[str, Any] | None:
    if part.record is None:
        return None
    end = part.end.row() if part.end else {}
    return asdict(part.record) | {name: end[name] for name in WHY if name in end}


def _row(job: Part) -> dict[str, Any]:
    return {
        "job": job.name,
        "stage": job.stage,
        "after": job.after,
        "recipe": job.facts.get("recipe", ""),
        "state": job.state,
        "sentence": job.sentence,
        "record": _record(job),
    }


def _lines(part: Part) -> Iterator[str]:
    if part.record is None or (part.state == HEAD_LOST and not part.record.attempts):
        yield f"{part.state}: {part.sentence}"
    else:
        outcome, size, *rest = text.lines(part.record)
        yield from (outcome, *(part.end.why() if part.end else ()), size)
        if part.no_reward:
            yield f"warning: {part.no_reward}"
        yield from part.began_with()
        yield from part.end.learned() if part.end else ()
        yield from part.best_told()
        yield from part.end.places() if part.end else ()
        yield from rest


def _full(run: RunFiles, own: Part) -> list[str]:
    """Return that no space is left for a run that has not ended: its journal cannot say it."""
    if own.state != RUNNING or shutil.disk_usage(run.root).free >= LEAST_FREE:
        return []
    return [f"warning: no space is left in {shown(run.root)}: free some, and the run goes on"]


def _lines_of_jobs(jobs: Sequence[Part]) -> Iterator[str]:
    for job in jobs:
        after = f", after {job.after}" if job.after else ""
        yield f"{job.name} ({job.stage}{after}):" if job.stage else f"{job.name}:"
        yield from (f"  {line}" for line in _lines(job))


def parser() -> Parser:
    made = Parser("report", __doc__)
    made.add_argument(
        "runs",
        type=Path,
        nargs="*",
        metavar="RUN",
        help="its ROLLCALL_RUN_DIR, or RUN/jobs/ID; several are compared; none: as for other "
        "commands",
    )
    made.add_argument("--json", action="store_true", help="one JSON object")
    made.add_argument(
        "--html", type=Path, metavar="FILE", help="also write one page with pictures there"
    )
    return made
