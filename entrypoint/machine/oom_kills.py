"""Counts the processes that the kernel killed on each node because memory ran out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
COUNTERS = ("memory.events", "memory/memory.oom_control")
"""The files of cgroup v2 and v1, as a container sees its own."""


def count(cgroup: Path = CGROUP) -> int:
    """The kills on this node so far; 0 if the kernel does not say."""
    for name in COUNTERS:
        try:
            text = (cgroup / name).read_text(errors="replace")
        except OSError:
            continue
        if match := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(match[1])
    return 0


def sentence(node: str, kills: int) -> str:
    processes = "a process" if kills == 1 else f"{kills} processes"
    return f"{node} was out of memory, and the kernel killed {processes} there"


class OomWatch:
    """What is new since it was last asked, from the moment on in which it is made."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """`counts`: node → its kills so far."""
        self._counts = counts
        self._seen = dict(counts())

    def look(self) -> dict[str, int]:
        """Node to its kills since, for nodes that had any."""
        now = self._counts()
        new = {node: kills - self._seen.get(node, 0) for node, kills in now.items()}
        self._seen = dict(now)
        return {node: kills for node, kills in new.items() if kills > 0}
