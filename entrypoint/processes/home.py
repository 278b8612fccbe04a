"""A home for the programs of a user who has none, as in a container that knows no such user."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from contract.files import private_dir

NAME = "home"


def give(private: Path) -> None:
    """Set HOME to a directory in `private` if the present one does not exist, or is a bare `/`.

    Compilers of kernels, the hub and trackers write there. A home that can only be read stays: it
    may have the user's keys. If `private` cannot be made, HOME stays as it is.
    """
    if _is_a_home(os.environ.get("HOME", "")):
        return
    with suppress(OSError):
        private_dir.make(private / NAME)
        os.environ["HOME"] = str(private / NAME)


def _is_a_home(path: str) -> bool:
    if not path or not Path(path).is_dir():
        return False
    if os.access(path, os.W_OK | os.X_OK):
        return True
    return path != "/" and os.access(path, os.R_OK | os.X_OK)
