"""`doctor`: is this machine fit to be this node? Runs the preflight checks and nothing else.

If the run's head answers, it also shows the state of the other nodes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from contract.exit_codes import ExitCode
from entrypoint.commands import head_client
from entrypoint.config import role
from entrypoint.config.settings import PreflightMode, Settings, declared
from entrypoint.config.uses import OF_OTHER_PROGRAMS
from entrypoint.preflight.ports import living
from entrypoint.preflight.run import run_checks
from entrypoint.preflight.show import failed_names, show_report

HEAD_SECONDS = 2.0
"""Limit for the head's answer; usually there is no head."""
OF_ROLL = ("head", "phase", "nodes", "missing", "refused", "differences")


def main(settings: Settings, as_json: bool) -> int:
    """Show every check; return 76 if one failed, whatever ROLLCALL_PREFLIGHT says.

    Raises ConfigError if the role cannot be decided.
    """
    if names := _unchecked(settings):
        print(f"not checked, as doctor has no job: {names} (`rollcall plan`)", file=sys.stderr)
    strict = replace(settings, preflight=PreflightMode.STRICT)
    report = run_checks(role.decide(settings), strict, running_pid=living(settings))
    state = of_head(settings)
    if as_json:
        roll = {"roll": {key: state[key] for key in OF_ROLL}} if state else {}
        print(json.dumps(report.as_dict() | roll, indent=2))
    else:
        show_report(report, print, on_terminal=sys.stdout.isatty())
        if report.fails:
            print(f"this node is not fit: {failed_names(report)} failed", file=sys.stderr)
        if state:
            print("\n".join(of_others(state)))
    return ExitCode.UNFIT if report.fails else ExitCode.FINISHED


def _unchecked(settings: Settings) -> str:
    """Return the variables of the job that only a recipe can judge; "" if none is set."""
    names = (declared()[name].about.name for name in OF_OTHER_PROGRAMS if settings.variable(name))
    return ", ".join(names)


def of_head(settings: Settings) -> dict[str, Any] | None:
    """Return the head's state; None if no head answers or accepts this node's token."""
    try:
        return head_client.ask(settings, "GET", "/v1/state", timeout=HEAD_SECONDS)
    except head_client.NoAnswerError:
        return None


def of_others(state: dict[str, Any]) -> list[str]:
    """Return a line for each node on the roll, each refused node, each difference."""
    lines = [
        f"{node['node']}: {_state_of(node)}"
        + (f", not well: {', '.join(node['warnings'])}" if node["warnings"] else "")
        for node in state["nodes"]
    ]
    lines += [f"{node}: refused: {reason}" for node, reason in state["refused"].items()]
    return [f"roll: {line}" for line in (*lines, *state["differences"])]


def _state_of(node: Mapping[str, Any]) -> str:
    if not node["present"]:
        return "silent"
    return "there" if node["joined"] else "is starting Ray"
