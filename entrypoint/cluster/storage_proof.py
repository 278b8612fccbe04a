"""Proves that a worker's run directory is the head's: the worker writes a file, the head reads it.

The file has a new random name, which no copy of the directory can have.
"""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from pathlib import Path

from entrypoint.net import wait

PREFIX = ".storage-"
NAME = re.compile(re.escape(PREFIX) + r"[0-9a-f]{32}")


class StorageProof:
    """The worker's side, for one membership."""

    def __init__(self, run_dir: Path, *, shared: bool = True) -> None:
        """`shared`: whether the run directory is to be the head's."""
        self._shared = shared
        self._file = run_dir / f"{PREFIX}{uuid.uuid4().hex}"

    def show(self) -> str:
        """Write the file and return its name, always the same: storage may show a new file late.

        Return "" if there is nothing to prove. Raises NotYetError if the directory does not take
        the file.
        """
        if not self._shared:
            return ""
        try:
            self._file.touch(0o644)
        except OSError as error:
            raise wait.NotYetError(
                f"ROLLCALL_RUN_DIR={self._file.parent} takes no file: {error.strerror}"
            ) from None
        return self._file.name

    def withdraw(self) -> None:
        with suppress(OSError):  # the empty file does no harm
            self._file.unlink(missing_ok=True)


def sweep(run_dir: Path) -> None:
    """Remove the files of killed workers. A worker that still checks in writes its file again."""
    with suppress(OSError):
        for path in run_dir.glob(f"{PREFIX}*"):
            path.unlink(missing_ok=True)


def is_there(run_dir: Path, name: str) -> bool:
    """Return whether the head's run directory has the file. Raises OSError.

    An NFS client asks its server at once for a name that is new to it. Later it may use an old
    answer; to open the directory makes it ask again.
    """
    if not NAME.fullmatch(name):
        return False
    return (run_dir / name).exists() or any(entry.name == name for entry in os.scandir(run_dir))
