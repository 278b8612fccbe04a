"""Errors of the system that end a node: in a sentence, and as its exit code."""

from __future__ import annotations

import errno
from pathlib import Path

from contract.exit_codes import ExitCode

OF_THE_NODE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Limits of the node, whatever path the call named."""


def describe(error: OSError) -> str:
    file = f"{error.filename}: " if error.filename else ""
    return f"{file}{error.strerror or error}"


def exit_code(error: OSError, run_dir: Path) -> ExitCode:
    """73 for a file of the run directory; 75 for any other error of this node."""
    name = error.filename
    of_the_run = isinstance(name, str) and Path(name).is_relative_to(run_dir)
    return ExitCode.RUN_DIR if of_the_run and error.errno not in OF_THE_NODE else ExitCode.RETRY
