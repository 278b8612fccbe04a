"""`status` and `stop`: a running head, or a run directory, seen from outside."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from contract.exit_codes import ExitCode
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint import console
from entrypoint.commands.head_client import NoAnswerError, ask, patiently
from entrypoint.config.settings import Settings
from entrypoint.run.flight_record import ended

Say = Callable[[Mapping[str, Any]], Iterable[str]]
"""Turns an answer of the head into lines."""
STOPS = "the head will save, stop and exit 143"
WATCH_SECONDS = 2.0
CLEAR = "\x1b[H\x1b[2J"
"""Has a terminal show an empty page."""


def status(settings: Settings, options: argparse.Namespace) -> int:
    """Show the head's state, or a job's; of a run that has ended, its outcome."""
    path = f"/v1/jobs/{options.job}" if options.job else "/v1/state"
    say: Say = job_sentences if options.job else _sentences
    if options.watch:
        return _watch(settings, options, path, say)
    return _say(settings, options, ("GET", path), say)


def stop(settings: Settings, options: argparse.Namespace) -> int:
    """Ask the head to stop, or a job; of a run that has ended, show its outcome."""
    if options.job:
        stops = f"{options.job} will save and stop; the cluster stays up"
        path = f"/v1/jobs/{options.job}/stop"
        return _say(settings, options, ("POST", path), lambda row: [_after_stop(row, stops)])
    return _say(settings, options, ("POST", "/v1/stop"), lambda _: [STOPS])


def _after_stop(row: Mapping[str, Any], stops: str) -> str:
    return stops if row["state"] == "running" else next(job_sentences(row))


def _say(
    settings: Settings,
    options: argparse.Namespace,
    question: tuple[str, str],
    say: Say,
) -> int:
    """Print the head's answer. `question`: method and path."""
    try:
        row = ask(settings, *question)
        lines = say(row)
    except NoAnswerError as error:
        over = None if options.job else run_end(settings)
        if over is None or error.exit_code == ExitCode.USAGE:
            raise
        row, lines = over.row(), over.lines()
    print(json.dumps(row) if options.json else "\n".join(lines))
    return ExitCode.FINISHED


def _watch(
    settings: Settings,
    options: argparse.Namespace,
    path: str,
    say: Say,
) -> int:
    """Print the state whenever it changes, until the run or the job has ended."""

    def look() -> tuple[dict[str, Any], Iterable[str], bool]:
        try:
            row = ask(settings, "GET", path)
            return row, say(row), _is_over(row)
        except NoAnswerError:
            if options.job or (over := run_end(settings)) is None:
                raise
            return over.row(), over.lines(), True

    shown = ""
    while True:
        row, lines, over = patiently(settings, look)
        text = json.dumps(row) if options.json else "\n".join(lines)
        if text != shown:
            redraw = sys.stdout.isatty() and not options.json
            print(f"{CLEAR if redraw else ''}{text}", flush=True)
            shown = text
        if over:
            return ExitCode.FINISHED
        time.sleep(WATCH_SECONDS)


def _is_over(row: Mapping[str, Any]) -> bool:
    """Whether the head's state, or a job's row, is the last one."""
    return row.get("outcome") is not None or row.get("ended") is not None


def run_end(settings: Settings) -> ended.Ended | None:
    """Return how the run has ended, from its directory; None if it has not, or is elsewhere."""
    if settings.url is not None:
        return None
    with suppress(OSError):
        return ended.read(RunFiles(settings.run_dir))
    return None


def _sentences(state: Mapping[str, Any]) -> list[str]:
    lines = [
        f"head {state['head']}: {state['phase']}; "
        f"{state['present']} of {state['expected_workers']} workers"
    ]
    for node in state["nodes"]:
        there = "there" if node["present"] else f"silent for {node['silent_seconds']:.0f} s"
        lines.append(f"  {node['node']} at {node['address']}: {there}")
    lines += [f"  missing: {sentence}" for sentence in state["missing"]]
    if state.get("job"):
        lines.append(f"{state['job']} runs")
    lines += [f"  {idle}"] if (idle := state.get("idle")) else []
    if state["progress"]:
        lines.append(console.sentence(Progress(**state["progress"])))
    if state["outcome"]:
        lines.append(f"outcome: {state['outcome']['outcome']}")
    return lines


def job_sentences(row: Mapping[str, Any]) -> Iterator[str]:
    code = "" if row["exit_code"] is None else f", exit code {row['exit_code']}"
    why = f": {row['sentence']}" if row["sentence"] else ""
    yield f"{row['id']} ({row['state']}{code}){why}"
    if row.get("progress"):
        yield console.sentence(Progress(**row["progress"]))
