"""A word of a command that names a run by its directory, as `status RUN` has it."""

from __future__ import annotations

import argparse
from pathlib import Path

from contract.run_dir import RunFiles


def run_at(text: str) -> Path | None:
    """Return the run's directory that a word names; None if it names none, as an empty one."""
    try:
        is_run = bool(text) and RunFiles(Path(text)).journal.is_file()
        return Path(text).absolute() if is_run else None
    except (OSError, ValueError):  # no file has such a name, or this user may not look there
        return None


def with_run(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options with the directory that a word names as `run_dir`, else None."""
    options.run_dir = None
    if isinstance(getattr(options, "job", None), Path):
        options.run_dir, options.job = options.job, None
    elif (names := getattr(options, "names", None)) and (run := run_at(names[0])):
        options.run_dir, options.names = run, names[1:]
    return options
