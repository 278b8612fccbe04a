"""The umask that this process began with: a user's function may change it for all its threads."""

from __future__ import annotations

import os
import re
from pathlib import Path


def _now() -> int:
    """Return the umask of this process, without a moment in which it is another."""
    found = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 8) if found else 0o022


_AT_START = _now()


def restore() -> None:
    """Have the files that are made from now on get the modes that they would have had at first."""
    os.umask(_AT_START)
