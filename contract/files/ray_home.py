"""Where Ray's files lie on a node: in a directory that no other user can enter.

Ray opens its own directory to every user of the machine (mode 0777), so it never stands alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

NAME = "ray"
"""Of Ray's own directory in ours: where Ray's programs look below RAY_TMPDIR."""
SOCKET_PATH_LIMIT = 107
"""Bytes of a path of AF_UNIX."""
SOCKET = f"/{NAME}/session_2026-11-21_01-28-51_123456_1234567/sockets/plasma_store.9"
LONGEST = SOCKET_PATH_LIMIT - len(SOCKET)
"""Bytes of our directory's path."""


def default(environ: Mapping[str, str]) -> Path:
    """Return our directory if no variable names it: below Ray's usual place, of this user alone."""
    parent = environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp"
    return Path(parent).absolute() / f"rollcall-{os.geteuid()}"
