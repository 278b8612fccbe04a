"""Whether a worker's run directory is the head's: the worker writes a file there, the head looks.

The file's name is random and made for the question: no copy of the directory has it, however fresh
the copy is.
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

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / f"{PREFIX}{uuid.uuid4().hex}"

    def show(self) -> str:
        """The file's name, once the file is there. It stays the same: storage may show a new file
        late. Raises NotYetError if the directory does not take the file."""
        try:
            self._file.touch(0o644)
        except OSError as error:
            raise wait.NotYetError(
                f"ROLLCALL_RUN_DIR={self._file.parent} takes no file: {error.strerror}"
            ) from None
        return self._file.name

    def withdraw(self) -> None:
        with suppress(OSError):  # a few bytes of a name, on storage that takes no more
            self._file.unlink(missing_ok=True)


def sweep(run_dir: Path) -> None:
    """Remove the files of workers that were killed; one that still asks writes its file again."""
    with suppress(OSError):
        for path in run_dir.glob(f"{PREFIX}*"):
            path.unlink(missing_ok=True)


def is_there(run_dir: Path, name: str) -> bool:
    """The head's side: whether its own run directory has the file. Raises OSError.

    A name that was never looked for is asked of an NFS server at once. Later, what the client
    remembers of it may be old; to open the directory makes it ask again.
    """
    if not NAME.fullmatch(name):
        return False
    return (run_dir / name).exists() or any(entry.name == name for entry in os.scandir(run_dir))
