"""`events`: the journal of the run or of a job, one event a line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any

from contract.exit_codes import ExitCode
from contract.journal_file.lines import event_of
from entrypoint.commands.log_part import Part
from entrypoint.commands.logs import follow, read_part, source_of
from entrypoint.config.settings import Settings
from entrypoint.console import DATE_FORMAT
from entrypoint.run.failure_classes import for_people
from entrypoint.run.log_files import JOURNAL


def events(settings: Settings, options: argparse.Namespace) -> int:
    """Show the events, oldest first; with --follow also those that come. Raises NoAnswerError."""
    source = source_of(settings, options.job or "", patient=options.follow)
    source.over()  # raises if there is no such job
    part = Part(options.lines, options.since, _time_of)
    offsets: dict[str, int] = {}
    whole, end, half = read_part(source, JOURNAL, part, offsets).rpartition("\n")
    lines: Iterable[str] = part.of(whole + end)
    if options.follow:
        lines = chain(
            lines, complete_lines(chain([half], follow(source, JOURNAL, offsets=offsets)))
        )
    for event in filter(None, map(_event_of, lines)):
        print(json.dumps(event) if options.json else sentence(event), flush=True)
    return ExitCode.FINISHED


def sentence(event: Mapping[str, Any]) -> str:
    """2026-11-23 18:00:00+0000 gn1 attempt 1 starts"""
    at = datetime.fromisoformat(event["at"]).astimezone()
    said = for_people(event.get("details", {}), event["sentence"])
    return f"{at.strftime(DATE_FORMAT)} {event['node']} {said}"


def complete_lines(texts: Iterable[str], *, with_last: bool = False) -> Iterator[str]:
    """Yield the lines of a text that comes in pieces, each once it is complete.

    `with_last`: also what follows the last line break.
    """
    half = ""
    for text in texts:
        *lines, half = (half + text).split("\n")
        yield from lines
    if with_last and half:
        yield half


def _event_of(line: str) -> dict[str, Any] | None:
    return event_of(line.encode())


def _time_of(line: str) -> datetime | None:
    event = _event_of(line)
    return datetime.fromisoformat(event["at"]) if event else None
