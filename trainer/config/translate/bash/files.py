"""Files that a script asks for or reads, as they are on this machine before the script runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from trainer.config.translate.bash.open_text import is_open, opened
from trainer.config.translate.bash.scope import Place, Record, text_of
from trainer.config.translate.bash.state import State
from trainer.config.translate.bash.syntax import BYTES

LARGEST = 2**20
"""Bytes of a script that is read."""
Test = Callable[[Path], bool]

TESTS: Mapping[str, Test] = {
    "-e": Path.exists,
    "-a": Path.exists,
    "-f": Path.is_file,
    "-d": Path.is_dir,
    "-L": Path.is_symlink,
    "-h": Path.is_symlink,
    "-s": lambda path: path.exists() and path.stat().st_size > 0,
    "-r": lambda path: os.access(path, os.R_OK),
    "-w": lambda path: os.access(path, os.W_OK),
    "-x": lambda path: os.access(path, os.X_OK),
}
"""Operator of `test` → what it asks of a path."""


def path_of(text: str, state: State, place: Place) -> str | None:
    """Return the whole path that a word names; None if only a run tells it."""
    here = state.directory
    if not isinstance(here, str) or not text:
        return None
    own = opened("{PWD}")
    whole = str(Path(here or place.directory, text)).replace(own, place.directory)
    return None if is_open(whole) or "\0" in whole else os.path.normpath(whole)


def tested(operator: str, text: str, state: State, record: Record, place: Place) -> bool | None:
    """Return the answer of a test of a file; None if only a run tells it."""
    path = path_of(text, state, place)
    if not text:
        return False
    if operator not in TESTS or path is None or may_change(path, state, record, place):
        return None
    try:
        return TESTS[operator](Path(path))
    except OSError:
        return None


def may_change(path: str, state: State, record: Record, place: Place) -> bool:
    """Return whether the script may have made, changed or removed a file before.

    That is if a program has got its path, or that of a directory above it.
    """
    named = [word for words in record.commands for word in words[1:] if word[:1] != "-"]
    for word in (*named, *record.written):
        found = path_of(word, state, place) if word else path
        if found is None or found == path or path.startswith(f"{found.rstrip('/')}/"):
            return True
    return False


def is_absent(word: str, state: State, record: Record, place: Place) -> bool:
    """Return whether a file that a script sources is sure not to be there.

    One without a slash may lie in a directory of PATH.
    """
    path = path_of(word, state, place)
    if path is None or may_change(path, state, record, place):
        return False
    programs = text_of(state.variables.get("PATH")) or "" if "/" not in word else ""
    beside = (Path(directory, word) for directory in programs.split(":") if directory)
    return not any(file.exists() for file in (Path(path), *beside))


def text_of_script(word: str, state: State, record: Record, place: Place) -> str | None:
    """Return what a script has that another one runs; None if it cannot be read before a run."""
    path = path_of(word, state, place)
    if path is None or path.startswith("/dev/") or may_change(path, state, record, place):
        return None
    try:
        file = Path(path)
        is_script = file.is_file() and file.stat().st_size <= LARGEST
        return file.read_text(errors=BYTES) if is_script else None
    except (OSError, UnicodeDecodeError):
        return None
