"""Whether a worker's run directory is the head's: the worker writes a file there, the head looks.

The file's name is random and made for the question: no copy of the directory has it, however fresh
the copy is.
"""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

PREFIX = ".storage-"
NAME = re.compile(re.escape(PREFIX) + r"[0-9a-f]{32}")


class StorageProof:
    """The worker's side, for one membership."""

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / f"{PREFIX}{uuid.uuid4().hex}"

    def show(self) -> str:
        """The file's name, once the file is there; "" where the directory does not take it.

        The name stays the same: storage may show a new file late.
        """
        try:
            self._file.touch(0o644)
        except OSError:
            return ""
        return self._file.name

    def withdraw(self) -> None:
        try:
            self._file.unlink(missing_ok=True)
        except OSError:
            return  # a few bytes of a name, on storage that takes no more


def is_there(run_dir: Path, name: str) -> bool:
    """The head's side: whether its own run directory has the file. Raises OSError.

    A name that was never looked for is asked of an NFS server at once. Later, what the client
    remembers of it may be old; to open the directory makes it ask again.
    """
    if not NAME.fullmatch(name):
        return False
    return (run_dir / name).exists() or any(entry.name == name for entry in os.scandir(run_dir))
