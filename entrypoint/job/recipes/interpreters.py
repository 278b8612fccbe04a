"""Which Python of the image has a framework, where it lies, and its version."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from entrypoint.config.runtime_env import NEEDS_INSTALL
from entrypoint.config.settings import Settings
from entrypoint.job import working_dir
from entrypoint.processes import process

PLACES = ("opt/*/bin/python", "root/*/bin/python", "venv/bin/python", "workspace/*/bin/python")
"""Where images have their environments, below the root directory."""
PROBE_SECONDS = 20.0
PROBE = Path(__file__).with_name("parser_probe.py")
_unanswered: dict[str, str] = {}
"""Pythons that had no answer to the newest question, and why."""
VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
FOUND = "import sys; from importlib.util import find_spec; print(find_spec(sys.argv[1]).name)"
PLACE = (
    "import sys; from importlib.util import find_spec; "
    "print(find_spec(sys.argv[1]).submodule_search_locations[0])"
)


def version_in(python: str, package: str) -> str | None:
    """Return the version of an installed package; None if that Python is not there or lacks it."""
    return _said(python, "-c", VERSION, package)


def has_module(python: str, module: str) -> bool:
    """Return whether that Python finds a module, installed or in the working directory."""
    return _said(python, "-c", FOUND, module) is not None


def package_in(python: str, package: str) -> Path | None:
    """Return the directory of a package of that Python; None if it has none."""
    found = _said(python, "-c", PLACE, package)
    return Path(found.splitlines()[-1]) if found else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a program's own parser makes of its flags."""

    options: frozenset[str]
    """As they are spelt, such as `--ckpt.path`."""
    unknown: tuple[str, ...]
    """Words that belong to none of them, with the values behind them."""
    error: str
    """Why the parser refuses the others; "" if it takes them."""


def asked(python: str, program: Path, flags: Sequence[str]) -> Verdict | None:
    """Ask the parser of a program's source, in its Python, which imports nothing of it.

    Returns None if that Python, or the program, gives no answer.
    """
    said = _said(python, "-I", str(PROBE), str(program), *flags)
    try:
        row = json.loads((said or "").splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return Verdict(frozenset(row["options"]), tuple(row["unknown"]), row["error"])


def unanswered(what: str, *pythons: str | None) -> str:
    """Return a sentence for the first Python that could not say whether it has this; else ""."""
    why = next((_unanswered[python] for python in pythons if python in _unanswered), "")
    return f"{why}, asked whether it has {what}: try again, or give another Python" if why else ""


def _said(python: str, *words: str) -> str | None:
    """Return what a program prints; None if it fails, or has no answer in time."""
    _unanswered.pop(python, None)
    try:
        return _answer(python, *words)
    except process.StartError as error:  # a slow start is not an answer: the next call asks again
        _unanswered[python] = str(error)
        return None


@cache
def _answer(*words: str) -> str | None:
    """Return what a program prints; None if it fails. Raises StartError."""
    code, said = process.output(words, timeout=PROBE_SECONDS)
    return said if code == 0 else None


def interpreter_for(typed: str | None, module: str) -> str:
    """Return the path of the Python that runs a command.

    `typed`: as in the command. A name without a directory means Rollcall's own Python, or if only
    the one on PATH has the module, that one.
    """
    if typed and "/" in typed:
        return typed
    on_path = shutil.which(typed or "python3")
    if on_path and not has_module(sys.executable, module) and has_module(on_path, module):
        return on_path
    return sys.executable


def is_own(python: str) -> bool:
    """Return whether a path is that of Rollcall's own Python, under any of its names."""
    own, other = Path(sys.executable), Path(python)
    return own.parent == other.parent and own.resolve() == other.resolve()


def for_actors(environment: Mapping[str, Any], python: str) -> dict[str, Any]:
    """Return the runtime environment with the driver's Python for Ray's actors, too.

    Ray starts actors with the Python of its own processes. A Python that the user names stays.
    """
    own = {} if python == sys.executable else {"py_executable": python}
    return {**own, **environment}


def others_with(module: str, root: Path = Path("/")) -> list[str]:
    """Return the Pythons at the usual places of images that have the module."""
    found = sorted(str(python) for place in PLACES for python in root.glob(place))
    return [python for python in found if has_module(python, module)]


def brings(settings: Settings, variables: Mapping[str, str], package: str) -> bool:
    """Return whether the job may run another package than that of its Python.

    `variables`: those before the command.
    """
    environment = settings.runtime_env
    brought = set(NEEDS_INSTALL) & set(environment)
    if working_dir.is_local(environment):
        place = working_dir.place(environment)
        if place.is_dir() and not (place / package).is_dir():
            brought.discard("working_dir")
    return bool(brought) or "PYTHONPATH" in {**variables, **environment.get("env_vars", {})}


def package_of(
    settings: Settings, variables: Mapping[str, str], python: str, package: str
) -> Path | None:
    """Return the directory of the package that will run; None if only the nodes know it."""
    environment = settings.runtime_env
    if working_dir.is_local(environment):
        own = working_dir.place(environment) / package
        if own.is_dir():
            return own
    return None if brings(settings, variables, package) else package_in(python, package)


def source_of(package: Path, module: str) -> Path | None:
    """Return the file of a module `package.x.y`; None if the package has none."""
    path = package.joinpath(*module.split(".")[1:])
    files = (path.with_suffix(".py"), path / "__main__.py")
    return next((file for file in files if file.is_file()), None)
