"""Errors of the system that end a node: in a sentence, with a remedy, and as its exit code."""

from __future__ import annotations

from pathlib import Path

from contract.exit_codes import ExitCode
from contract.files.os_errors import OF_THE_NODE, PERMANENT, TEMPORARY, describe, explain, remedy

__all__ = ["TEMPORARY", "describe", "exit_code", "explain", "remedy"]


def exit_code(error: OSError, run_dir: Path) -> ExitCode:
    """73 for a file of the run directory; 76 if another try would fail too; else 75."""
    name = error.filename
    of_the_run = isinstance(name, str) and Path(name).is_relative_to(run_dir)
    if of_the_run and error.errno not in OF_THE_NODE:
        return ExitCode.RUN_DIR
    # Errors without a number are this program's own, of directories that are not private.
    permanent = error.errno in PERMANENT or isinstance(error, PermissionError)
    return ExitCode.UNFIT if permanent else ExitCode.RETRY
