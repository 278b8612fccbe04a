"""`status`, `logs`, `stop`: a running head, or a run directory, seen from outside."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from contract.exit_codes import ExitCode
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint import console
from entrypoint.cluster.client import ControlClient, NoHeadError, WrongTokenError
from entrypoint.config.role import host_to_ask
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.run import token as run_token
from entrypoint.run.flight_record import ended

TAIL_LINES = 20
STOPS = "the head will save, stop and exit 143"


class NoAnswerError(Exception):
    """No head of this run answers; the sentence says why, with a remedy."""

    def __init__(self, sentence: str, exit_code: ExitCode) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def status(settings: Settings, as_json: bool) -> int:
    """Show the head's state; of a run that has ended, its outcome."""
    return _say(settings, as_json, ("GET", "/v1/state"), _sentences)


def stop(settings: Settings, as_json: bool) -> int:
    """Ask the head to stop; of a run that has ended, show its outcome."""
    return _say(settings, as_json, ("POST", "/v1/stop"), lambda _: [STOPS])


def logs(settings: Settings, as_json: bool) -> int:
    """Show the end of each log file, and the outcome of a run that has ended. Needs no head."""
    run = RunFiles(settings.run_dir)
    files = sorted(run.logs.glob("*.log")) if run.logs.is_dir() else []
    if not files:
        print(f"no log files in {run.logs}: is ROLLCALL_RUN_DIR right?", file=sys.stderr)
        return ExitCode.RUN_DIR
    tails = {path.name: _tail(path) for path in files}
    if over := _ended(run):
        tails[run.result.name] = list(over.lines())
    if as_json:
        print(json.dumps(tails))
    else:
        for name, lines in tails.items():
            print(f"==> {name}", *lines, "", sep="\n")
    return ExitCode.FINISHED


def _tail(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-TAIL_LINES:]


def _say(
    settings: Settings,
    as_json: bool,
    question: tuple[str, str],
    say: Callable[[dict[str, Any]], Iterable[str]],
) -> int:
    """Print the head's answer. `question`: method and path; `say`: turns the answer into lines."""
    try:
        row = ask(settings, *question)
        lines = say(row)
    except NoAnswerError as error:
        if (over := _ended(RunFiles(settings.run_dir))) is None:
            print(error, file=sys.stderr)
            return error.exit_code
        row, lines = over.row(), over.lines()
    print(json.dumps(row) if as_json else "\n".join(lines))
    return ExitCode.FINISHED


def _ended(run: RunFiles) -> ended.Ended | None:
    with suppress(OSError):
        return ended.read(run)
    return None


def ask(settings: Settings, method: str, path: str, **options: Any) -> dict[str, Any]:
    """Return the head's answer. `options`: as httpx takes them. Raises NoAnswerError."""
    token = run_token.for_client(settings)
    if token is None:
        sentence = f"no token: set ROLLCALL_TOKEN, or ROLLCALL_RUN_DIR (now {settings.run_dir})"
        raise NoAnswerError(sentence, ExitCode.NOT_ALLOWED)
    host = host_to_ask(settings)
    try:
        return ControlClient(host, settings.control_port, token).command(method, path, **options)
    except NoHeadError as error:
        raise NoAnswerError(str(error), ExitCode.UNREACHABLE) from None
    except wait.NotYetError as error:
        elsewhere = ": ask on the head's node, or set ROLLCALL_HEAD_ADDRESS"
        remedy = elsewhere if host == "localhost" else ""
        raise NoAnswerError(f"no head answers: {error}{remedy}", ExitCode.UNREACHABLE) from None
    except WrongTokenError as error:
        raise NoAnswerError(str(error), ExitCode.NOT_ALLOWED) from None


def _sentences(state: dict[str, Any]) -> list[str]:
    lines = [
        f"head {state['head']}: {state['phase']}; "
        f"{state['present']} of {state['expected_workers']} workers"
    ]
    for node in state["nodes"]:
        there = "there" if node["present"] else f"silent for {node['silent_seconds']:.0f} s"
        lines.append(f"  {node['node']} at {node['address']}: {there}")
    lines += [f"  missing: {sentence}" for sentence in state["missing"]]
    if state["progress"]:
        lines.append(console.sentence(Progress(**state["progress"])))
    if state["outcome"]:
        lines.append(f"outcome: {state['outcome']['outcome']}")
    return lines
