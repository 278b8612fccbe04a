"""`status`, `wait` and `stop`: they ask a running head, or the directory of a run that ended."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

from contract.durations import counted, duration
from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.cluster.access import page_link
from entrypoint.cluster.roll import QUESTION_SECONDS
from entrypoint.commands import terminal
from entrypoint.commands.head_client import (
    AwayError,
    NoAnswerError,
    NoRunError,
    ask_there,
    patiently,
)
from entrypoint.commands.status_text import is_over, job_sentences, state_sentences
from entrypoint.config.settings import Settings
from entrypoint.run import unfit_head_note
from entrypoint.run.flight_record import run_end
from entrypoint.run.shown_path import shown

Say = Callable[[Mapping[str, Any]], Iterable[str]]
"""Turns an answer of the head into lines."""
STOPS = "the head will save, stop and exit 143. That takes a while: {} returns once it is over"
UNSAVED = "The run ends with its last checkpoint"
ENDED = (
    "the head was lost: what it had left on this machine is ended ({}), and its memory and GPUs "
    "are free. A start with the same run directory goes on from the newest checkpoint"
)
WATCH_SECONDS = 2.0
WAIT_SECONDS = 0.5
HOLD_SECONDS = QUESTION_SECONDS + 3
HOLD: Mapping[str, Any] = {"params": {"until": "outcome"}, "timeout": HOLD_SECONDS}
PASSES = frozenset({"at", "silent_seconds", "away_seconds", "attempt_seconds"})
"""Fields of a state that grow while nothing happens."""


def status(settings: Settings, options: argparse.Namespace) -> int:
    """Show the head's state, or a job's; of a run that has ended, its outcome."""
    if options.watch:
        return _watch(settings, options)
    return _say(settings, options, ("GET", _path(options)), _lines(options))


def wait(settings: Settings, options: argparse.Namespace) -> int:
    """Wait for the end of the run, or of a job; return its exit code. Raises NoAnswerError."""
    deadline = time.monotonic() + (options.timeout or float("inf"))
    while True:
        left = deadline - time.monotonic()
        # The head holds its answer until the outcome: it ends soon after, and none would be missed.
        held = HOLD if not options.job and left > HOLD_SECONDS else {}
        patient, limit = settings, "ROLLCALL_HEAD_TIMEOUT"
        if left < settings.head_timeout:
            patient, limit = replace(settings, head_timeout=max(left, 0.1)), "--timeout"
        look = partial(_look, settings, options, **held)
        row, lines, over = patiently(patient, look, limit=limit)
        if over:
            print(json.dumps(row) if options.json else "\n".join(lines))
            return _exit_code(row)
        if left <= 0:
            what = options.job or "the run"
            sentence = f"{what} has not ended within {duration(options.timeout)}"
            raise NoAnswerError(sentence, ExitCode.RETRY)
        time.sleep(max(0.0, min(left, WAIT_SECONDS)))


def _exit_code(row: Mapping[str, Any]) -> int:
    outcome = row.get("outcome") or row
    if outcome["exit_code"] is not None:
        return int(outcome["exit_code"])
    return ExitCode.FINISHED if outcome["outcome"] == "finished" else ExitCode.JOB_FAILED


def stop(settings: Settings, options: argparse.Namespace) -> int:
    """Ask the head to stop, or a job; of a run that has ended, show its outcome."""
    try:
        if options.job:
            stops = f"{options.job} will save and stop; the cluster stays up"
            path = f"{job_path(options.job)}/stop"
            return _say(settings, options, ("POST", path), lambda row: [_after_stop(row, stops)])
        of = "" if settings.url else f" {shlex.quote(shown(settings.run_dir))}"
        wait = f"`rollcall wait{of}`"
        return _say(settings, options, ("POST", "/v1/stop"), partial(_of_stop, wait=wait))
    except AwayError:
        if options.job or not (ended := _ended_leftovers(settings)):
            raise
        row = {"ended_processes": ended, "run_dir": str(settings.run_dir)}
        print(json.dumps(row) if options.json else ENDED.format(counted(ended, "process")))
        return ExitCode.FINISHED
    except NoRunError:
        if not settings.run_dir.is_dir():
            raise
        why = unfit_head_note.read(RunFiles(settings.run_dir)) or "no head has begun a run there"
        raise NoRunError(
            f"nothing runs in {settings.run_dir}: {why}. Set "
            "ROLLCALL_RUN_DIR to the run's directory, or for a head elsewhere ROLLCALL_URL and "
            "ROLLCALL_TOKEN"
        ) from None


def _of_stop(row: Mapping[str, Any], *, wait: str) -> Sequence[str]:
    why = row.get("cannot_save")  # a head of an earlier version does not tell it
    return [f"the head cannot save: {why}. {UNSAVED}" if why else STOPS.format(wait)]


def _ended_leftovers(settings: Settings) -> int:
    """End what the run's lost head has left to run on this machine; return how many processes."""
    from entrypoint.node import lost_processes  # few stops meet a lost head

    with suppress(OSError):
        return 0 if settings.url else lost_processes.end_of_run(RunFiles(settings.run_dir))
    return 0


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
        row = _answer(settings, *question)
        lines = say(row)
    except NoAnswerError as error:
        over = None if options.job else end_of_run(settings)
        if over is None or error.exit_code == ExitCode.USAGE:
            raise
        row, lines = over.row(), over.lines()
    print(json.dumps(row) if options.json else "\n".join(lines))
    return ExitCode.FINISHED


def _watch(settings: Settings, options: argparse.Namespace) -> int:
    """Print the state whenever it changes, until the run or the job has ended.

    As JSON it is one line. Time that passes is a change only where the page is drawn again.
    """
    redraws = sys.stdout.isatty() and not options.json
    shown: Any = None
    while True:
        row, lines, over = patiently(settings, partial(_look, settings, options))
        text = json.dumps(row) if options.json else "\n".join(lines)
        news = text if redraws else _lasting(row)
        if news != shown:
            if redraws:
                terminal.clear()
            print(text, flush=True)
            shown = news
        if over:
            return ExitCode.FINISHED
        time.sleep(WATCH_SECONDS)


def _lasting(value: Any) -> Any:
    """Return what of a state is news if it changes. Sentences of absent workers say how long."""
    if isinstance(value, list):
        return [_lasting(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    left_out = PASSES | {"sentence"} if "away_seconds" in value else PASSES
    return {name: _lasting(one) for name, one in value.items() if name not in left_out}


def _look(
    settings: Settings, options: argparse.Namespace, **asked: Any
) -> tuple[Mapping[str, Any], Iterable[str], bool]:
    """Return the state or the job's row, its lines, and whether it is the last one."""
    try:
        row = _answer(settings, "GET", _path(options), **asked)
        return row, _lines(options)(row), is_over(row)
    except NoAnswerError:
        if options.job or (over := end_of_run(settings)) is None:
            raise
        return over.row(), over.lines(), True


def _path(options: argparse.Namespace) -> str:
    return job_path(options.job) if options.job else "/v1/state"


def job_path(job: str) -> str:
    """Pure: return the head's path for a job. `job`: its id or name, in which spaces may be."""
    return f"/v1/jobs/{quote(job, safe='')}"


def _lines(options: argparse.Namespace) -> Say:
    return job_sentences if options.job else state_sentences


def _answer(settings: Settings, method: str, path: str, **asked: Any) -> dict[str, Any]:
    """Return the head's answer; the state with the link of the page. Raises NoAnswerError."""
    row, url = ask_there(settings, method, path, **asked)
    if path != "/v1/state":
        return row
    return row | {"page": page_link(url, row.pop("read_key"))}


def end_of_run(settings: Settings) -> run_end.Ended | None:
    """Return how the run has ended, from its directory; None if it has not, or is elsewhere."""
    if settings.url is not None:
        return None
    with suppress(OSError):
        return run_end.read(RunFiles(settings.run_dir))
    return None
