"""Tells the modules of a user's own files from those of installed packages."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from entrypoint.job.failures.tracebacks import NOT_OWN


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
