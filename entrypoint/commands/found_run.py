"""The run that a reading command means which no word, no setting and no node here names."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from contract.run_dir import JOB_ENTRY, RunFiles
from entrypoint.commands import node_shell
from entrypoint.commands.named_run import GIVE_A_RUN, meant
from entrypoint.config.read import misspelt_to_ask
from entrypoint.config.settings import declared

PLACES = (Path("run"), Path("runs"))
"""Where a person's runs lie, below the working directory: as the guides and `demo` put them."""


def run_of(environ: Mapping[str, str]) -> Path:
    """Return the run of a command that needs a directory, and say on standard error which it is.

    It is that of ROLLCALL_RUN_DIR, of the node that lives here, of this image, or of the working
    directory. Raises UnnamedRunError.
    """
    if given := environ.get("ROLLCALL_RUN_DIR", "").strip():
        print(f"No RUN is given: this is ROLLCALL_RUN_DIR={given}", file=sys.stderr)
        return meant(Path(given))
    for fault in misspelt_to_ask(environ):
        print(f"warning: {fault}", file=sys.stderr)
    node = node_shell.with_node(environ)
    if node is not environ:
        print(node_shell.about(node), file=sys.stderr)
        return node_shell.run_of(node)
    usual = Path(str(declared()["run_dir"].default))
    if _has_run(usual):
        print(f"No RUN is given: this is {usual}", file=sys.stderr)
        return usual
    if found := in_working_dir():
        return found
    where = " or ".join(f"./{place}" for place in PLACES)
    raise node_shell.UnnamedRunError(
        f"no RUN is given, and there is none in {where}: {GIVE_A_RUN}, or set ROLLCALL_RUN_DIR"
    )


def instead_of(environ: Mapping[str, str]) -> Path | None:
    """Return the run of the working directory if `environ` leads to no run at all; else None."""
    if node_shell.names_a_run(environ) or _has_run(Path(str(declared()["run_dir"].default))):
        return None
    return in_working_dir()


def in_working_dir() -> Path | None:
    """Return the newest run of the working directory, and say which it is; None without one."""
    from entrypoint.run import run_list  # nearly all commands need none

    found: dict[Path, float] = {}
    for place in PLACES:
        runs = [RunFiles(place)] if _has_run(place) else []
        with suppress(OSError):
            runs = runs or [*run_list.find(place).values()]
        for run in runs:
            with suppress(OSError):
                if not (run.root / JOB_ENTRY).exists():  # a submitted job is its cluster's
                    found[run.root] = run.journal.stat().st_mtime
    if not found:
        return None
    newest = max(found, key=lambda path: found[path])
    where = " and ".join(sorted({f"./{path.parts[0]}" for path in found}))
    which = "the only run" if len(found) == 1 else f"the newest of {len(found)} runs"
    print(f"No RUN is given: this is {newest}, {which} in {where}", file=sys.stderr)
    return newest.absolute()


def _has_run(path: Path) -> bool:
    try:
        return os.path.lexists(RunFiles(path).journal)
    except OSError:
        return False
