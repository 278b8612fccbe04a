"""The warm process of a node: its files, and what it is called.

It has the imports of a rank, and forks the driver and Ray's workers out of itself.
"""

from __future__ import annotations

from pathlib import Path

NAME = "rollcall-warm"
"""How the system calls the process, and those that keep its forks."""
PADDING = "ROLLCALL_ROOM"
"""A variable, the last in its environment, whose text a fork overwrites with its own variables."""
PADDING_BYTES, TITLE_BYTES = 2**14, 2**12
"""For the variables and for the command line that the system shows of a fork."""
OF_WORKERS = "--python="
"""Option of Program.RAY_START: the Python that starts Ray's workers."""


def socket(home: Path) -> Path:
    """Return the socket at which the process in this directory is asked for a fork."""
    return home / "socket"


def wanted(home: Path) -> Path:
    """Return the file whose presence asks for the process."""
    return home / "wanted"


def python(home: Path) -> Path:
    """Return the program that stands in for Python, and asks there."""
    return home / "python"
