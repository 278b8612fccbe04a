"""Command lines of programs: of this product, of its environment, and of users.

`python -m` searches the working directory first, where a user may have a folder `trainer` or `env`.
With `-P` Python does not search there. What PYTHONPATH names it searches first in any case.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from contract.launch.programs import Program

ROOT = Path(__file__).resolve().parents[2]
OURS = ("contract", "entrypoint", "env", "trainer")


def program(module: Program, *arguments: str) -> tuple[str, ...]:
    """The command line of a program of this product, with this interpreter."""
    before = (str(Program.OWN_PACKAGES),) if _is_hidden() else ()
    return (sys.executable, "-P", "-m", *before, str(module), *arguments)


def _is_hidden() -> bool:
    """Whether a place that PYTHONPATH names has a module with the name of a package of ours."""
    places = map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    return any(
        (place / name).is_dir() or (place / f"{name}.py").is_file()
        for place in places
        if place.resolve() != ROOT
        for name in OURS
    )


def beside_interpreter(name: str) -> str:
    """The program beside this interpreter; the one on PATH only if there is none beside it."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or name


def as_typed() -> str:
    """How a person types `rollcall` in a shell: by its path, unless the shell finds it by name."""
    program = beside_interpreter("rollcall")
    return "rollcall" if shutil.which("rollcall") == program else shlex.quote(program)


def unshadowed(argv: Sequence[str]) -> tuple[str, ...]:
    """A user's command line, with `-P` if it is `python -m` and a program of this product.

    If the working directory has a module of that name, the user means that module.
    """
    if not Path(argv[0]).name.startswith("python"):
        return tuple(argv)
    options = list(takewhile(lambda word: word[:1] == "-" and word not in ("-m", "-c"), argv[1:]))
    command = argv[len(options) + 1 :]
    ours = len(command) > 1 and command[0] == "-m" and _is_ours(command[1])
    return (argv[0], "-P", *argv[1:]) if ours else tuple(argv)


def _is_ours(module: str) -> bool:
    names = module.split(".")
    return names[0] in OURS and _has(ROOT, names) and not _has(Path.cwd(), names)


def _has(directory: Path, names: Sequence[str]) -> bool:
    """Whether `python -m` would find the module of these names in `directory`."""
    path = directory.joinpath(*names)
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
