"""A shell beside a node that lacks the node's variables, as a login by SSH into a pod does.

The template of a pod gives its variables to the container's first process. `docker exec` hands them
on, an SSH server does not.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from entrypoint.config.platforms.detect import detect
from entrypoint.config.settings import Settings, declared, variable_names

PROC = Path("/proc")
FIRST = "1"
"""The container's first process."""
TAKE_OVER = """while IFS= read -r -d '' word; do export "$word"; done < /proc/1/environ"""
ELSEWHERE = ("ROLLCALL_URL", "ROLLCALL_HEAD_ADDRESS", "HEAD_POD_ID")
"""Variables that say where a head is, whatever its run."""
RUN_DIR = "ROLLCALL_RUN_DIR"
PORT = re.compile(r":(\d+)/?$")
"""At the end of an address."""
SHOWN = 4
"""Names in the warning."""


CHANGES = frozenset({"submit", "pipeline", "stop", "rotate-token"})
"""Commands that end or change something of a run."""


class UnnamedRunError(Exception):
    """The shell names no run, and the command must not guess it; the message names what lives."""


def with_node(
    environ: Mapping[str, str], proc: Path = PROC, address: str = ""
) -> Mapping[str, str]:
    """Return `environ` with the variables of the node that lives here, or of the first process.

    Of nodes of several runs, the port in `address` names one. A shell that has a setting of its own
    is left as it is. Raises UnnamedRunError.
    """
    if _settings_in(environ):
        return environ
    nodes = list(_nodes(proc).values())
    runs = sorted({_run_of(node) for node in nodes})
    if len(runs) > 1 and (port := PORT.search(address)):
        nodes = [node for node in nodes if node.get("ROLLCALL_CONTROL_PORT") == port[1]]
        runs = sorted({_run_of(node) for node in nodes})
    if len(runs) > 1:
        raise UnnamedRunError(
            f"nodes of {len(runs)} runs live on this machine: name one by "
            + " or ".join(f"ROLLCALL_RUN_DIR={run}" for run in runs)
        )
    heads_first = sorted(nodes, key=lambda node: node.get("RAY_WORKER", "0"))
    found = heads_first[0] if heads_first else environ_of(FIRST, proc)
    return {**found, **environ} if _settings_in(found) else environ


def names_a_run(environ: Mapping[str, str]) -> bool:
    """Return whether a shell has settings of its own, by which a command finds its run."""
    return bool(_settings_in(environ))


def of_run(environ: Mapping[str, str], run_dir: Path, proc: Path = PROC) -> Mapping[str, str]:
    """Return `environ` for the run in `run_dir`, with the variables of its node that lives here.

    What `environ` says of where another head may be is left out.
    """
    kept = {name: text for name, text in environ.items() if name not in ELSEWHERE}
    return {**kept, **_node_in(run_dir, proc), "ROLLCALL_RUN_DIR": str(run_dir)}


def of_named_run(environ: Mapping[str, str], proc: Path = PROC) -> Mapping[str, str]:
    """Return `environ` with what it lacks of its run's node that lives here, such as a port.

    A shell that names no run directory, or says where the head is, is left as it is.
    """
    run_dir = environ.get("ROLLCALL_RUN_DIR", "").strip()
    if not run_dir or any(environ.get(name, "").strip() for name in ELSEWHERE):
        return environ
    return {**_node_in(Path(run_dir), proc), **environ}


def _node_in(run_dir: Path, proc: Path) -> Mapping[str, str]:
    """Return the variables of the node of that run that lives here, the head's first."""
    nodes = _nodes(proc)
    for pid in sorted(nodes, key=lambda pid: nodes[pid].get("RAY_WORKER", "0")):
        if (proc / pid / "cwd" / _run_of(nodes[pid])).resolve() == run_dir.resolve():
            return nodes[pid]
    return {}


def _nodes(proc: Path) -> dict[str, dict[str, str]]:
    """Return the variables of each node that lives here, by its process."""
    from entrypoint.processes import process  # `plan` does without psutil

    found = {str(pid): environ_of(str(pid), proc) for pid in process.entrypoints()}
    return {pid: node for pid, node in found.items() if node}


def run_of(node: Mapping[str, str]) -> Path:
    """Return the directory of the run that a node's variables name."""
    return Path(_run_of(node))


def about(node: Mapping[str, str]) -> str:
    """Return of which run a command tells that was given no setting. `node`: its variables."""
    name = node.get("ROLLCALL_NODE_NAME") or "node"
    return (
        f"No setting names a run: this is the one in {_run_of(node)}, whose {name} "
        "runs on this machine. ROLLCALL_RUN_DIR names another."
    )


def refuse_guess(command: str, node: Mapping[str, str], proc: Path = PROC) -> None:
    """Raise UnnamedRunError if the command changes a run that no setting names.

    `node`: the variables that were taken over.
    """
    if command not in CHANGES or is_only_run(node, proc):
        return
    raise UnnamedRunError(f"No setting names a run, and {command} changes one: {_lives(node)}")


def lives_beside(environ: Mapping[str, str], proc: Path = PROC) -> str:
    """Return which run lives on this machine, if settings name none; "" if none lives, or one does.

    A shell with other settings is asked of their run, and no run is guessed for it.
    """
    if any(environ.get(name, "").strip() for name in ("ROLLCALL_URL", RUN_DIR)):
        return ""
    try:
        node = with_node({}, proc)
    except UnnamedRunError as error:
        return str(error)
    return _lives(node) if node else ""


def _lives(node: Mapping[str, str]) -> str:
    run = _run_of(node)
    return (
        f"{_name_of(node)} of the run in {run} lives on this machine. If you mean that run, set "
        f"{RUN_DIR}={shlex.quote(run)}"
    )


def is_only_run(node: Mapping[str, str], proc: Path = PROC) -> bool:
    """Return whether the first process of this container names that run: there is no other."""
    first = environ_of(FIRST, proc)
    return bool(_settings_in(first)) and _run_of(first) == _run_of(node)


def for_address(settings: Settings) -> Settings:
    """Return settings for an address that was given beside a run that was not.

    The guessed run's token may open what answers there. No lease of that run leads elsewhere.
    """
    names = declared()["run_dir"].about.names
    kept = {name: text for name, text in settings.environ.items() if name not in names}
    return replace(settings, environ=kept)


def lacking(environ: Mapping[str, str], proc: Path = PROC) -> str:
    """Return a sentence on the settings that only the first process has; "" if there are none."""
    first = environ_of(FIRST, proc)
    missing = [name for name in _settings_in(first) if name not in environ]
    if not missing or _settings_in(environ):
        return ""
    names = ", ".join(missing[:SHOWN]) + (", …" if len(missing) > SHOWN else "")
    return (
        f"this shell lacks settings of the container's first process ({names}), as a login by SSH "
        f"does: take them over in bash by: {TAKE_OVER}"
    )


def environ_of(pid: str, proc: Path = PROC) -> dict[str, str]:
    """Return a process's variables as it was started; {} if this user may not read them."""
    try:
        words = (proc / pid / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (word.decode(errors="surrogateescape").partition("=") for word in words if b"=" in word)
    return {name: text for name, _, text in pairs}


def _run_of(node: Mapping[str, str]) -> str:
    return node.get("ROLLCALL_RUN_DIR") or str(declared()["run_dir"].default)


def _name_of(node: Mapping[str, str]) -> str:
    return node.get("ROLLCALL_NODE_NAME") or "a node"


def _settings_in(environ: Mapping[str, str]) -> list[str]:
    """Return the names in `environ` that are settings, or facts of a platform for them."""
    known = {*variable_names(), *detect(environ).sources.values()}
    return [name for name, text in environ.items() if name in known and text.strip()]
