"""`rollcall report RUN`: the flight record of a run; needs no head and no settings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.journal import read_events
from contract.run_dir import RunFiles, write_atomically
from entrypoint.commands.arguments import Parser, fail
from entrypoint.run.flight_record import ended, html, text
from entrypoint.run.flight_record.record import NothingToReportError, from_journal

WHY = ("cause", "to_do", "log")
"""What the end of a run adds to its record."""


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    run = RunFiles(options.run)
    if not run.journal.is_file():
        sentence = f"{run.root} is no run: it has no {run.journal.name}"
        return fail(sentence, ExitCode.RUN_DIR, as_json=options.json)
    try:
        record, over = from_journal(read_events(run.journal)), ended.read(run)
        if options.html:
            write_atomically(options.html, html.page(record, run.root.name))
    except NothingToReportError as error:
        return fail(f"{run.root}: {error}", ExitCode.RUN_DIR, as_json=options.json)
    except OSError as error:
        sentence = f"{error.filename}: {error.strerror}"
        return fail(sentence, ExitCode.RUN_DIR, as_json=options.json)
    if options.json:
        why = {name: value for name, value in over.row().items() if name in WHY} if over else {}
        print(json.dumps(asdict(record) | why))
    else:
        outcome, *rest = text.lines(record)
        print("\n".join([outcome, *(over.why() if over else ()), *rest]))
    return ExitCode.FINISHED


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("report", __doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="its ROLLCALL_RUN_DIR")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one page there")
    return parser.parse(arguments)
