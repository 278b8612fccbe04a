"""Which entrypoint a process on this machine belongs to, and whether that one still lives."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

INNERMOST = re.compile(r"^NSpid:.*?(\d+)$", re.MULTILINE)
STARTED_AT = 22
"""Of the field in /proc/PID/stat that says when it started, in ticks since the machine did."""


def identity(pid: int | str = "self") -> str | None:
    """What no other process of this machine is called; None where it has ended.

    The number that it has for itself, which in a container is not the one that others see, and
    its start, since numbers come again: the first process of every container is 1.
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
    """Identity to number of every living process but this one."""
    mine = identity()
    found = ((identity(pid), pid) for pid in psutil.pids())
    return {name: pid for name, pid in found if name is not None and name != mine}
