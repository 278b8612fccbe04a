"""`doctor`: is this machine fit to be this node? Runs the checks and starts nothing else."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from entrypoint import role
from entrypoint.preflight.check import Report
from entrypoint.preflight.run import run_checks
from entrypoint.settings import PreflightMode, Settings
from trainer.contract import ExitCode


def main(settings: Settings, as_json: bool) -> int:
    """Show every check; 76 where one failed, whatever ROLLCALL_PREFLIGHT says.

    Raises SettingsError where the role cannot be decided.
    """
    report = run_checks(role.decide(settings), replace(settings, preflight=PreflightMode.STRICT))
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        show(report)
    return ExitCode.UNFIT if report.fails else ExitCode.FINISHED


def show(report: Report) -> None:
    """A table on a terminal, else a line a check; the failed ones by name on standard error."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(report.table())
    else:
        print("\n".join(report.lines()))
    if report.fails:
        names = ", ".join(result.name for result in report.fails)
        print(f"this node is not fit: {names} failed", file=sys.stderr)
