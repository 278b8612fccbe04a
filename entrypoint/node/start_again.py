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

from contract.files.child_variables import STARTED_BY
from contract.redaction import SECRET_NAME, shell_line
from entrypoint.config.settings import Settings, declared

ENGINES = {"docker": "/.dockerenv", "podman": "/run/.containerenv"}
"""Program → the file that it makes in each of its containers."""
CONTAINER = re.compile(r"[0-9a-f]{12}")
"""The host name that both give a container: the beginning of its id, which names it."""
BY_HAND = ("torchrun",)
"""Platforms whose variables a person sets, and types the command."""
MODULE = "__main__.py"
"""The file of a program that `python -m` starts by its directory's name."""
APPTAINER = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
"""Set where the words of this process are not those that a person has typed."""

START_ID = "ROLLCALL_START_ID"
NEW_ID_EACH_TIME = ("kubernetes", "leaderworkerset")
"""Platforms whose files give ROLLCALL_START_ID the id of what makes the pods."""


def command(settings: Settings, host: str, root: Path = Path("/")) -> str:
    """Return a line for a shell. Words in capitals are what only the person knows.

    `host`: this machine's host name; `root`: of its files.
    """
    if whole := settings.environ.get(STARTED_BY):
        return whole  # the head alone would wait for the other nodes of that program
    run_dir = str(settings.run_dir)
    if is_whole(settings):
        return of_platform(settings, os.environ)
    if any(name in os.environ for name in APPTAINER):
        other = f" and {START_ID}=" if settings.variable("start_id") else ""
        return f"apptainer run OPTIONS IMAGE WORDS, with ROLLCALL_RUN_DIR={run_dir}{other}"
    for engine, made in ENGINES.items():
        if (root / made.lstrip("/")).exists() and is_containers(
            sys.argv, os.getpid(), os.getppid(), _first(root)
        ):
            if settings.variable("start_id"):  # a container that was made keeps its id
                return f"{engine} run OPTIONS --env {START_ID}= IMAGE WORDS"
            again = f"{engine} run OPTIONS IMAGE WORDS"
            kept = f"{engine} start --attach {host}; after {engine} run --rm: {again}"
            return kept if CONTAINER.fullmatch(host) else again
    return typed(sys.argv, os.environ, Path.cwd())


def is_whole(settings: Settings) -> bool:
    """Return whether the command starts all nodes: it is another program's, or a platform's."""
    platform = settings.platform
    is_platforms = platform.again or (platform.name or BY_HAND[0]) not in BY_HAND
    return bool(is_platforms or settings.environ.get(STARTED_BY))


def of_platform(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the line of the platform on which this node runs.

    With the same ROLLCALL_START_ID as before, a run that a person has stopped would stay so.
    """
    platform, run_dir = settings.platform, str(settings.run_dir)
    is_kept = settings.variable("start_id") and platform.name not in NEW_ID_EACH_TIME
    if platform.again:
        line = filled(platform.again, {**environ, "ROLLCALL_RUN_DIR": run_dir})
        return f"{line}  # with another {START_ID}" if is_kept else line
    other = f" and another {START_ID}" if is_kept else ""
    return f"submit the job to {platform.name} again, with ROLLCALL_RUN_DIR={run_dir}{other}"


def is_containers(words: Sequence[str], own: int, parent: int, first: Sequence[str]) -> bool:
    """Pure: whether a container was started for this process; else a person started it in there.

    Process 1 is this one, or its parent: an init program, such as tini, or a shell, whose own words
    hold the command. What somebody leaves in the background there has the parent 1, too.

    `words`: of this process, the program first; `own`, `parent`: process numbers; `first`: the
    words of process 1.
    """
    if own == 1 or parent != 1:
        return own == 1
    name, given = _name(words[0]), list(words[1:])
    if "-c" in first:  # of a shell, whose next word is a script
        return any(name in word for word in first)
    program, at_end = first[: len(first) - len(given)][-1:], list(first[len(first) - len(given) :])
    return [_name(word) for word in program] == [name] and at_end == given


def _name(program: str) -> str:
    """Return the name by which a program or a package is called."""
    path = Path(program)
    return path.parent.name if path.name == MODULE else path.name


def _first(root: Path) -> list[str]:
    """Return the words of process 1; none if they cannot be read."""
    try:
        return (root / "proc/1/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def filled(line: str, environ: Mapping[str, str]) -> str:
    """Pure: return the line with the values of its variables; the name of one without a value."""
    names = Template(line).get_identifiers()
    return Template(line).substitute({n: shlex.quote(environ.get(n) or n) for n in names})


def typed(words: Sequence[str], environ: Mapping[str, str], directory: Path) -> str:
    """Return the line with the variables that it needs; those that are secret are left out.

    ROLLCALL_START_ID is emptied: with the same one, a run that a person has stopped would stay so.
    A secret among the words is SECRET. `words`: of this process, the program first.
    """
    known = {variable.about.name for variable in declared().values() if not variable.about.secret}
    given = sorted(name for name in known & environ.keys() if not SECRET_NAME.search(name))
    command = [*_called(words[0], environ), *words[1:]]
    other_id = {START_ID: ""} if START_ID in given else {}
    return shell_line(command, {**environ, **other_id}, str(directory), given)


def _called(program: str, environ: Mapping[str, str]) -> list[str]:
    """Return the words that call a program: by its name if the shell finds it by that."""
    path = Path(program)
    if path.name == MODULE:
        return [sys.executable, "-m", path.parent.name]
    found = shutil.which(path.name, path=environ.get("PATH", ""))
    return [path.name if found and Path(found).resolve() == path.resolve() else program]
