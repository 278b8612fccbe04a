"""Makes a local working directory an archive, which Ray brings to all nodes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entrypoint.config.runtime_env import MOST_PACKAGE_BYTES, PACKAGE, REMOTE, TOO_LARGE
from entrypoint.processes.process import Process, StartError
from entrypoint.processes.programs import program

PACK_SECONDS = 600.0


class PackError(Exception):
    """The directory cannot be made an archive; the sentence says why."""


def is_local(runtime_env: Mapping[str, Any]) -> bool:
    """Whether the environment names a directory or a file of this machine."""
    directory = runtime_env.get("working_dir")
    return directory is not None and not REMOTE.fullmatch(directory)


def pack(runtime_env: Mapping[str, Any], into: Path) -> Path:
    """Return the archive of the local working directory, in `into` unless it is packed already.

    Ray's own code does it, in a process of its own: its import takes a second. Raises PackError.
    """
    given = Path(runtime_env["working_dir"]).expanduser().absolute()
    if PACKAGE.fullmatch(given.name) and given.is_file():
        return given  # the client has packed it
    if not given.is_dir() and not (given.suffix == ".zip" and given.is_file()):
        raise PackError(f"working_dir {given} is neither a directory nor a .zip file here")
    excludes = json.dumps(runtime_env.get("excludes", []))
    arguments = (str(given), "--into", str(into), "--excludes", excludes)
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "log"
        argv = program("trainer.cluster.diagnostics.pack", *arguments)
        try:
            packing = Process("the archive of working_dir", argv, env=os.environ, log_to=log)
            code = packing.wait(PACK_SECONDS)
        except (StartError, OSError) as error:
            raise PackError(f"working_dir {given} cannot be packed: {error}") from None
        packing.stop(grace=1.0)
        last = (log.read_text(errors="replace").strip().splitlines() or ["no word"])[-1]
    if code != 0:
        raise PackError(f"working_dir {given} cannot be packed: {last}")
    if (package := Path(last)).stat().st_size > MOST_PACKAGE_BYTES:
        package.unlink()
        raise PackError(TOO_LARGE)
    return package
