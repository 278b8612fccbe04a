"""Makes a local working directory an archive, which Ray brings to all nodes."""

from __future__ import annotations

import json
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.launch.programs import Program
from entrypoint.config.runtime_env import PACKAGE, REMOTE
from entrypoint.processes.process import Process, StartError
from entrypoint.processes.programs import program

PACK_SECONDS = 600.0
MOST_SHOWN = 5
"""Paths that a note names."""
MOST_BYTES = 100 * 2**20 - 1
"""Limit for an archive that Ray's head is to have: its dashboard takes no larger request."""
TOO_LARGE = (
    "the working directory has 100 MiB or more as an archive, and the nodes do not share the run "
    "directory: share it, or leave data out by .gitignore or by "
    """--runtime-env-json '{"excludes": ["/data"]}'"""
)
PLAIN = re.compile(r"/[\w./-]{1,180}")
"""Paths that Ray reads from a URI as they are; it also makes a file name of them."""


@dataclass(frozen=True, slots=True)
class Package:
    """A working directory as an archive."""

    path: Path
    left_out: tuple[str, ...] = ()
    """Run directories, and files with keys, that are not in it: paths below the directory."""

    @property
    def note(self) -> str:
        """What the archive lacks, for people; "" if it has everything."""
        if not self.left_out:
            return ""
        shown = ", ".join(self.left_out[:MOST_SHOWN])
        more = len(self.left_out) - MOST_SHOWN
        rest = f" and {more} more" if more > 0 else ""
        return (
            f"left out of the working directory's archive: {shown}{rest}. Run directories, and "
            "files with keys, are never packed"
        )


class PackError(Exception):
    """The directory cannot be made an archive; the sentence says why."""


def is_local(runtime_env: Mapping[str, Any]) -> bool:
    """Whether the environment names a directory or a file of this machine."""
    directory = runtime_env.get("working_dir")
    return directory is not None and not REMOTE.fullmatch(directory)


def content(runtime_env: Mapping[str, Any], path: Path) -> bytes:
    """Return the content of a file as the job finds it: below working_dir, if there is one.

    Raises OSError, LookupError and BadZipFile.
    """
    if not is_local(runtime_env) or path.is_absolute():
        return path.read_bytes()
    directory = place(runtime_env)
    if directory.is_dir():
        return (directory / path).read_bytes()
    with zipfile.ZipFile(directory) as archive:
        return archive.read(os.path.normpath(path))


def place(runtime_env: Mapping[str, Any]) -> Path:
    """Return the path of the directory, or of its archive, that `working_dir` names."""
    return expanded(runtime_env["working_dir"]).absolute()


def expanded(path: str) -> Path:
    """Return the path with its `~` expanded; it stays if that home is unknown."""
    with suppress(RuntimeError):
        return Path(path).expanduser()
    return Path(path)


def below(run_dir: Path, given: str) -> Path:
    """Return the path as the job is to have it: a relative one is below the run directory."""
    return run_dir / expanded(given)


def pack(runtime_env: Mapping[str, Any], into: Path) -> Package:
    """Return the archive of the local working directory, in `into` unless it is packed already.

    Ray's own code does it, in a process of its own: its import takes a second. Raises PackError.
    """
    given = place(runtime_env)
    if PACKAGE.fullmatch(given.name) and given.is_file():
        return Package(given)  # the client has packed it
    if not given.is_dir() and not (given.suffix == ".zip" and given.is_file()):
        raise PackError(f"working_dir {given} is neither a directory nor a .zip file here")
    excludes = json.dumps(runtime_env.get("excludes", []))
    arguments = (str(given), "--into", str(into), "--excludes", excludes)
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "log"
        argv = program(Program.PACK_WORKING_DIR, *arguments)
        try:
            packing = Process("the archive of working_dir", argv, env=os.environ, log_to=log)
            code = packing.wait(PACK_SECONDS)
        except (StartError, OSError) as error:
            raise PackError(f"working_dir {given} cannot be packed: {error}") from None
        packing.stop(grace=1.0)
        last = (log.read_text(errors="replace").strip().splitlines() or ["no word"])[-1]
    if code != 0:
        raise PackError(f"working_dir {given} cannot be packed: {last}")
    row = json.loads(last)
    return Package(Path(row["package"]), tuple(row["left_out"]))


def on_nodes(package: Path, *, shared: bool) -> str:
    """Return the archive's place for Ray: a URI, or a path whose content the head gives to Ray.

    `shared`: all nodes see the archive. Raises PackError if it is too large to be given to Ray.
    """
    if shared and PLAIN.fullmatch(str(package)):
        return f"file://{package}"
    if package.stat().st_size > MOST_BYTES:
        raise PackError(TOO_LARGE)
    return str(package)
