"""`status`, `logs`, `stop`: a running head, or a run directory, seen from outside."""

from __future__ import annotations

import json
import sys
from typing import Any

from entrypoint import console, run_token, wait
from entrypoint.head_client import HeadClient, NoHeadError, WrongTokenError
from entrypoint.role import host_to_ask
from entrypoint.settings import Settings
from trainer.contract import ExitCode, Progress, RunFiles

TAIL_LINES = 20


def status(settings: Settings, as_json: bool) -> int:
    return _ask(settings, as_json, "GET", "/v1/state", _sentences)


def stop(settings: Settings, as_json: bool) -> int:
    return _ask(
        settings, as_json, "POST", "/v1/stop", lambda _: ["the head will save, stop and exit 143"]
    )


def logs(settings: Settings, as_json: bool) -> int:
    """The end of each log file; needs no living head."""
    directory = RunFiles(settings.run_dir).logs
    files = sorted(directory.glob("*.log")) if directory.is_dir() else []
    if not files:
        print(f"no log files in {directory}: is ROLLCALL_RUN_DIR right?", file=sys.stderr)
        return ExitCode.RUN_DIR
    tails = {
        path.name: path.read_text(errors="replace").splitlines()[-TAIL_LINES:] for path in files
    }
    if as_json:
        print(json.dumps(tails))
    else:
        for name, lines in tails.items():
            print(f"==> {name}", *lines, "", sep="\n")
    return ExitCode.FINISHED


def _ask(settings: Settings, as_json: bool, method: str, path: str, say: Any) -> int:
    token = run_token.for_client(settings)
    if token is None:
        print(
            f"no token: set ROLLCALL_TOKEN, or ROLLCALL_RUN_DIR (now {settings.run_dir})",
            file=sys.stderr,
        )
        return ExitCode.NOT_ALLOWED
    host = host_to_ask(settings)
    client = HeadClient(host, settings.control_port, token)
    try:
        answer = client.command(method, path)
    except NoHeadError as error:
        print(error, file=sys.stderr)
        return ExitCode.UNREACHABLE
    except wait.NotYetError as error:
        elsewhere = ": ask on the head's node, or set ROLLCALL_HEAD_ADDRESS"
        remedy = elsewhere if host == "localhost" else ""
        print(f"no head answers: {error}{remedy}", file=sys.stderr)
        return ExitCode.UNREACHABLE
    except WrongTokenError as error:
        print(error, file=sys.stderr)
        return ExitCode.NOT_ALLOWED
    print(json.dumps(answer) if as_json else "\n".join(say(answer)))
    return ExitCode.FINISHED


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
