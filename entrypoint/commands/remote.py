"""`status`, `wait` and `stop`: a running head, or a run directory, seen from outside."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

from contract.durations import counted, duration, steps_kept
from contract.exit_codes import ExitCode
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint import console
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
from entrypoint.config.settings import Settings
from entrypoint.job.jobs import JobState
from entrypoint.run import unfit_head_note
from entrypoint.run.flight_record import run_end
from entrypoint.run.flight_record.text import dated

Say = Callable[[Mapping[str, Any]], Iterable[str]]
"""Turns an answer of the head into lines."""
TO_REPLACE = "start it again, or another node in its place"
STOPS = "the head will save, stop and exit 143"
ENDED = (
    "the head was lost: what it had left on this machine is ended ({}), and its memory and GPUs "
    "are free. A start with the same run directory goes on from the newest checkpoint"
)
MOST_NAMED = 8
"""Nodes of one warning that are named."""
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
        return _say(settings, options, ("POST", "/v1/stop"), lambda _: [STOPS])
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
        return row, _lines(options)(row), _is_over(row)
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


def _is_over(row: Mapping[str, Any]) -> bool:
    """Whether the head's state, or a job's row, is the last one."""
    return row.get("outcome") is not None or row.get("ended") is not None


def end_of_run(settings: Settings) -> run_end.Ended | None:
    """Return how the run has ended, from its directory; None if it has not, or is elsewhere."""
    if settings.url is not None:
        return None
    with suppress(OSError):
        return run_end.read(RunFiles(settings.run_dir))
    return None


def state_sentences(state: Mapping[str, Any]) -> list[str]:
    """Return what a head says of itself, its nodes and its run, a line each."""
    head = "head" if state["head"] == "head" else f"head {state['head']}"
    roll = f"{state['present']} of {counted(state['expected_workers'], 'worker')}"
    if not state["expected_workers"]:
        roll = "a cluster of one node"
    spares = state.get("spares", [])
    if expected := state.get("expected_spares", 0):
        of = "" if len(spares) >= expected else f"{len(spares)} of "
        roll += f", {of}{counted(expected if of else len(spares), 'spare')}"
    lines = [f"{head}: {_phase(state)}; {roll}"]
    for node in state["nodes"]:
        there = "there" if node["joined"] else "is starting Ray"
        there = "a spare" if node["node"] in spares else there
        if not node["present"]:
            there = f"silent for {duration(node['silent_seconds'])}; {TO_REPLACE}"
        lines.append(f"  {node['node']} at {node['address']}: {there}")
    shown = {node["node"] for node in state["nodes"]}
    others = (worker for worker in state["missing"] if worker["node"] not in shown)
    lines += [f"  missing: {worker['sentence']}" for worker in others]
    lines += [f"  meanwhile: {said}"] if (said := _meanwhile(state)) else []
    job, name = state.get("job"), state.get("run", {}).get("name", "")
    if job:
        lines.append(f"{job} runs{f' ({name})' if name not in ('', job) else ''}")
    elif name:
        began = state["run"].get("created")
        lines.append(f"run {name}{f', began {dated(began)}' if began else ''}")
    lines += [f"  {idle}"] if (idle := state.get("idle")) else []
    lines += _attempts(state)
    staying = state.get("slow_nodes", [])
    told = {one["node"] for one in staying}
    slow = [one for one in state.get("stragglers", []) if one["node"] not in told]
    lines += [f"slow: {one['sentence']}" for one in (*slow, *staying)]
    lines += [f"warning: {warning}" for warning in _warnings(state)]
    if state["outcome"]:
        lines.append(f"outcome: {state['outcome']['outcome']}")
    return [*lines, f"the page, to read only: {state['page']}"]


def _meanwhile(state: Mapping[str, Any]) -> str:
    """Return what the job does while a worker is away; "" if none is, or if no job has begun."""
    away = [node for node in state["nodes"] if not node["present"]]
    attempt = state.get("attempt")
    if not (away or state["missing"]) or not attempt or state["outcome"]:
        return ""
    present, expected = state["present"], state["expected_workers"]
    if present >= expected:
        return "another node has its place, and the job needs no other"
    roll = f"{present} of {counted(expected, 'worker')}"
    match state["phase"]:
        case "training":
            return f"attempt {attempt} still runs, with {roll}"
        case "roll call" | "recovering":
            return f"the job waits, with {roll}: ROLLCALL_MIN_WORKERS lets it go on with fewer"
    return ""


def _attempts(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield how far the run is. A head of an earlier version says less of its attempts."""
    progress = Progress.of(state.get("progress") or {})
    if attempt := state.get("attempt"):
        failures = state["failures"]
        told = f"{counted(failures, 'failure')} so far" if failures else ""
        saved = progress.checkpoint if progress else None
        checkpoint = "no checkpoint yet" if saved is None else f"checkpoint of step {saved}"
        is_logged = progress is not None and progress.is_logged
        if not state.get("tells_steps", True) or (is_logged and saved is None):
            checkpoint = ""  # the job alone knows
        lost = state.get("steps_lost")
        kept = steps_kept(progress.step, lost) if progress and lost else ""
        parts = (_without_step(state), told, kept, checkpoint)
        if said := ", ".join(filter(None, parts)):
            yield f"attempt {attempt}: {said}"
    if (failure := state.get("last_failure")) and not _is_over(state):
        yield from run_end.why(failure, {**run_end.LABELS, "cause": "last failure"})
    if progress:
        yield console.sentence(progress)


def _phase(state: Mapping[str, Any]) -> str:
    """Return the head's phase; of a job that tells no steps, nobody knows that it trains."""
    trains = state["phase"] == "training"
    return "running" if trains and not state.get("tells_steps", True) else str(state["phase"])


def _without_step(state: Mapping[str, Any]) -> str:
    """Return what an attempt does that tells no step now; "" if it tells them, or has ended."""
    if state["is_starting"]:
        return "starting, no step yet"
    seconds = state.get("attempt_seconds")
    if seconds is None or state.get("tells_steps", True):
        return ""
    return f"running for {duration(seconds)}; it tells no steps"


def _warnings(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the page lists as needing attention, besides absent nodes."""
    for node, why in state.get("refused", {}).items():
        yield f"{node} was refused: {why}"
    if no_reward := state.get("no_reward"):
        yield no_reward
    yield from state.get("differences", ())
    said: dict[str, dict[str, None]] = {}
    """Warning → the nodes that have it, in their order."""
    for one in state.get("health", ()):
        said.setdefault(f"{one['part']}: {one['evidence']}", {})[one["node"]] = None
    for node in filter(None, [state.get("head_node"), *state["nodes"]]):
        for check in node["warnings"]:
            finding = node["findings"].get(check) or f"{check}: rollcall doctor"
            said.setdefault(finding, {})[node["node"]] = None
    yield from (f"{_several(list(nodes))}: {finding}" for finding, nodes in said.items())


def _several(nodes: Sequence[str]) -> str:
    """Return the names of nodes; of many, how many there are and the first of them."""
    shown = ", ".join(nodes[:MOST_NAMED])
    return f"{len(nodes)} nodes ({shown}, …)" if len(nodes) > MOST_NAMED else shown


def job_sentences(row: Mapping[str, Any]) -> Iterator[str]:
    code = "" if row["exit_code"] is None else f", exit code {row['exit_code']}"
    why = f": {row['sentence']}" if row["sentence"] else ""
    yield f"{row['id']} ({row['state']}{code}){why}"
    if row["state"] == JobState.FAILED:
        yield from run_end.why(row)
    yield from _attempts(row)
