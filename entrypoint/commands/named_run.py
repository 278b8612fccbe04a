"""A word of a command that names a run by its directory, as `status RUN` has it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from contract.run_dir import USUAL, RunFiles

GIVE_A_RUN = "give the run's directory, its ROLLCALL_RUN_DIR"
"""What to do about a path that is not a run's."""
PATH = re.compile(r"\.\.?|.*/.*", re.DOTALL)
"""A word that is a path, and names no job, node or log."""


def run_at(text: str) -> Path | None:
    """Return the run's directory that a word names; None if it names none, as an empty one."""
    try:
        path = meant(Path(text))
        is_run = bool(text) and RunFiles(path).journal.is_file()
        return path.absolute() if is_run else None
    except (OSError, ValueError):  # no file has such a name, or this user may not look there
        return None


def meant(path: Path) -> Path:
    """Return the run's directory that a path means: its only run, if that is in `run`, else itself.

    `demo` puts a run beside its data there, and so do the guides.
    """
    below = path / USUAL
    with suppress(OSError):
        if not RunFiles(path).journal.exists() and RunFiles(below).journal.exists():
            runs = [one for one in path.iterdir() if RunFiles(one).journal.exists()]
            return below if len(runs) == 1 else path
    return path


def with_variable(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return `environ` whose ROLLCALL_RUN_DIR names the run that it means, as a word would."""
    given = environ.get("ROLLCALL_RUN_DIR", "").strip()
    with suppress(OSError, ValueError):  # what reads the setting says why
        if given and not RunFiles(Path(given)).token.exists():  # else a head begins there
            run = meant(Path(given))
            return environ if run == Path(given) else {**environ, "ROLLCALL_RUN_DIR": str(run)}
    return environ


def not_a_run(text: str) -> str:
    """Return why a path is no run, and what to do; "" for a run, and for a word that is no path."""
    return "" if run_at(text) or not PATH.fullmatch(text) else lack(text)


def lack(text: str) -> str:
    """Return what a path without a run lacks, and what to do; every command says it so."""
    try:
        if _is_directory(text):
            return f"{text} is not a run: it has no {RunFiles(Path()).journal.name}; {GIVE_A_RUN}"
        there = "is not a directory" if Path(text).exists() else "does not exist"
    except (OSError, ValueError):
        there = "cannot be looked at by this user"
    return f"{text} {there}: {GIVE_A_RUN}"


def directory_without_run(options: argparse.Namespace) -> str:
    """Return why the directory that a word names is no run; "" if no word is a directory's name.

    The word may still be a job's or a node's name.
    """
    names = getattr(options, "names", None) or [getattr(options, "job", None)]
    word = names[0]
    return lack(word) if isinstance(word, str) and _is_directory(word) else ""


def may_be_log(options: argparse.Namespace, run_dir: Path | None) -> bool:
    """Return whether a word that is also a directory's name may name a log, of this run if given.

    That run is none that the words name, so it is looked at here, and not asked.
    """
    names = getattr(options, "names", None)
    if not names or run_dir is None:
        return bool(names)
    logs = RunFiles(run_dir).logs
    with suppress(OSError):
        return any((logs / f"{kind}{names[0]}.log").is_file() for kind in ("", "worker-"))
    return False


def _is_directory(text: str) -> bool:
    try:
        return bool(text) and Path(text).is_dir()
    except (OSError, ValueError):
        return False


def with_run(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options with the directory that a word names as `run_dir`, else None."""
    options.run_dir = None
    if isinstance(getattr(options, "job", None), Path):
        options.run_dir, options.job = options.job, None
    elif (names := getattr(options, "names", None)) and (run := run_at(names[0])):
        options.run_dir, options.names = run, names[1:]
    elif word := getattr(options, "run", None):  # of rotate-token, which also takes a URL
        options.run_dir = run_at(word)
    return options
