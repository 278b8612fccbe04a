"""What the system shows of a process: its command line and its variables.

Both are memory of the process, filled as a program starts. A fork has its parent's; this makes them
its own, so that it is found, and named, as if it had been started.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOM = "ROLLCALL_ROOM"
"""A variable, last in the environment, whose text leaves room for those of a fork."""
ARGUMENTS_AT = 48
"""Of the field in /proc/PID/stat that says where the command line begins; its end is the next."""


def room(size: int) -> str:
    return "." * size


def show_variables(environ: Mapping[str, str]) -> None:
    """Those that differ from the program's, in the room that was left for them.

    They come after the program's, and so hold for whoever reads them all. To be called before ROOM
    is removed.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address = getenv(ROOM.encode())
    if address is None:
        return
    size = len(os.environb[ROOM.encode()])
    pairs = (os.fsencode(f"{name}={value}") for name, value in environ.items())
    _write(address - len(ROOM) - 1, len(ROOM) + 1 + size, b"\0".join(pairs))


def show_arguments(argv: Sequence[str]) -> None:
    """As the command line; cut where the program's was shorter."""
    _, _, fields = Path("/proc/self/stat").read_text().rpartition(")")
    begin, end = (int(field) for field in fields.split()[ARGUMENTS_AT - 3 :][:2])
    if begin:  # some sandboxes tell nothing
        _write(begin, end - begin, b"\0".join(map(os.fsencode, argv)))


def _write(address: int, size: int, text: bytes) -> None:
    ctypes.memmove(address, text[: size - 1].ljust(size, b"\0"), size)
