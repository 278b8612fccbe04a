"""Identifies processes of this machine, so that a process can name its entrypoint."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

INNERMOST = re.compile(r"^NSpid:.*?(\d+)$", re.MULTILINE)
STARTED_AT = 22
"""Number of the field in /proc/PID/stat with the start, in ticks since the machine's boot."""


def identity(pid: int | str = "self") -> str | None:
    """A text that no other process of this machine has; None if the process has ended.

    It is the PID in the process's own PID namespace, and the start: PIDs are used again, and the
    first process of every container has PID 1.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    number, _, rest = stat.partition(" ")
    fields = rest.rpartition(")")[2].split()  # from the third on: a name may hold anything
    if fields[0] in "ZX":  # only its parent has not heard of its end
        return None
    if innermost := INNERMOST.search(status):  # some sandboxes tell nothing
        number = innermost[1]
    return f"{number}:{fields[STARTED_AT - 3]}"


def others() -> dict[str, int]:
    """Identity to PID of every living process but this one."""
    mine = identity()
    found = ((identity(pid), pid) for pid in psutil.pids())
    return {name: pid for name, pid in found if name is not None and name != mine}
