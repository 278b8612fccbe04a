"""The command with which a person starts this head again, as far as this node can know it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from contract.redaction import SECRET_NAME
from entrypoint.config.settings import Settings, declared

ENGINES = {"docker": "/.dockerenv", "podman": "/run/.containerenv"}
"""Program → the file that it makes in each of its containers."""
CONTAINER = re.compile(r"[0-9a-f]{12}")
"""The host name that both give a container: the beginning of its id, which names it."""
OTHERS_START_IT = ("KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
"""Set where the words of this process are not those that a person has typed."""


def command(settings: Settings, host: str, root: Path = Path("/")) -> str:
    """Return a line for a shell; "" if another program, such as a platform's, has started this.

    `host`: this machine's host name; `root`: of its files.
    """
    if settings.platform.name or any(name in os.environ for name in OTHERS_START_IT):
        return ""
    for engine, made in ENGINES.items():
        if (root / made.lstrip("/")).exists():
            return f"{engine} start --attach {host}" if CONTAINER.fullmatch(host) else ""
    return typed(sys.argv, os.environ, Path.cwd())


def typed(words: Sequence[str], environ: Mapping[str, str], directory: Path) -> str:
    """Pure: return the line with the variables that it needs; those that are secret are left out.

    `words`: of this process, the program first.
    """
    known = {variable.about.name for variable in declared().values() if not variable.about.secret}
    given = sorted(name for name in known & environ.keys() if not SECRET_NAME.search(name))
    variables = [f"{name}={shlex.quote(environ[name])}" for name in given]
    program = Path(words[0])
    is_module = program.name == "__main__.py"
    called = [sys.executable, "-m", program.parent.name] if is_module else [program.name]
    line = " ".join([*variables, shlex.join([*called, *words[1:]])])
    return f"cd {shlex.quote(str(directory))} && {line}"
