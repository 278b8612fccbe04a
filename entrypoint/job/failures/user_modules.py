"""Tells the modules of a user's own files from those of installed packages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from entrypoint.job.failures.classes import AttemptResult, raised_classes
from entrypoint.job.failures.tracebacks import NOT_OWN


def looked_up(result: AttemptResult) -> AttemptResult:
    """Return the result with what the user's files say of its errors."""
    raised = set(raised_classes(result))
    users = frozenset(one for one in raised if is_of_user(one.module, one.file))
    return replace(result, users_classes=users)


def is_of_user(module: str, file: str) -> bool:
    """Return whether a user's file defines the module, or a class in it: `myerrors`, `lib.a.Outer`.

    `file`: the user's file that uses it. It is the module itself, or the module's file lies beside
    it or in a directory above it. A directory alone is no module: `datasets` may hold data.
    """
    path, parts = Path(file), module.split(".")
    if path.stem == module:
        return True
    names = [Path(*parts[:count]) for count in range(len(parts), 0, -1)]
    return any(
        _is_own(above / one)
        for above in path.parents
        for name in names
        for one in (name.with_suffix(".py"), name / "__init__.py")
    )


def _is_own(file: Path) -> bool:
    with suppress(OSError):  # as if it were not there: the run is then tried again
        return file.is_file() and not NOT_OWN.search(str(file))
    return False
