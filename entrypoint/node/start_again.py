"""The command with which a person starts this head again, as far as this node can know it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from contract.redaction import SECRET_NAME, shell_line
from entrypoint.config.read import STARTED_BY
from entrypoint.config.settings import Settings, declared

ENGINES = {"docker": "/.dockerenv", "podman": "/run/.containerenv"}
"""Program → the file that it makes in each of its containers."""
CONTAINER = re.compile(r"[0-9a-f]{12}")
"""The host name that both give a container: the beginning of its id, which names it."""
BY_HAND = ("torchrun",)
"""Platforms whose variables a person sets, and types the command."""
APPTAINER = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
"""Set where the words of this process are not those that a person has typed."""


def command(settings: Settings, host: str, root: Path = Path("/")) -> str:
    """Return a line for a shell. Words in capitals are what only the person knows.

    `host`: this machine's host name; `root`: of its files.
    """
    if whole := settings.environ.get(STARTED_BY):
        return whole  # the head alone would wait for the other nodes of that program
    run_dir = str(settings.run_dir)
    if settings.platform.again or (settings.platform.name or BY_HAND[0]) not in BY_HAND:
        return of_platform(settings, os.environ)
    if any(name in os.environ for name in APPTAINER):
        return f"apptainer run OPTIONS IMAGE WORDS, with ROLLCALL_RUN_DIR={run_dir}"
    for engine, made in ENGINES.items():
        if (root / made.lstrip("/")).exists() and _is_first(os.getpid(), os.getppid()):
            again = f"{engine} run OPTIONS IMAGE WORDS"
            kept = f"{engine} start --attach {host}; after {engine} run --rm: {again}"
            return kept if CONTAINER.fullmatch(host) else again
    return typed(sys.argv, os.environ, Path.cwd())


def of_platform(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the line of the platform on which this node runs."""
    platform, run_dir = settings.platform, str(settings.run_dir)
    if platform.again:
        return filled(platform.again, {**environ, "ROLLCALL_RUN_DIR": run_dir})
    return f"submit the job to {platform.name} again, with ROLLCALL_RUN_DIR={run_dir}"


def _is_first(own: int, parent: int) -> bool:
    """Whether a container was started for this process; else somebody has typed in a shell there.

    An init program, such as tini, is the container's process 1, and this one is its child.
    """
    return 1 in (own, parent)


def filled(line: str, environ: Mapping[str, str]) -> str:
    """Pure: return the line with the values of its variables; the name of one without a value."""
    names = Template(line).get_identifiers()
    return Template(line).substitute({n: shlex.quote(environ.get(n) or n) for n in names})


def typed(words: Sequence[str], environ: Mapping[str, str], directory: Path) -> str:
    """Return the line with the variables that it needs; those that are secret are left out.

    A secret among the words is SECRET. `words`: of this process, the program first.
    """
    known = {variable.about.name for variable in declared().values() if not variable.about.secret}
    given = sorted(name for name in known & environ.keys() if not SECRET_NAME.search(name))
    command = [*_called(words[0], environ), *words[1:]]
    return shell_line(command, environ, str(directory), given)


def _called(program: str, environ: Mapping[str, str]) -> list[str]:
    """Return the words that call a program: by its name if the shell finds it by that."""
    path = Path(program)
    if path.name == "__main__.py":
        return [sys.executable, "-m", path.parent.name]
    found = shutil.which(path.name, path=environ.get("PATH", ""))
    return [path.name if found and Path(found).resolve() == path.resolve() else program]
