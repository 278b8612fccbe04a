"""Which actor a process of Ray's is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

ACTOR = ":actor_name:"
"""With which Ray begins an actor's part of its worker's log."""


def actor_of(process: psutil.Process) -> str:
    """The name of the actor's class; "" for what is none.

    By its log, which is open as its standard output. Of a title Ray gives no assurance: it takes
    one away for a moment as it changes it, and a worker has none for life where the variable that
    happens to come first in its environment was changed before the title was (then argv is not
    found).
    """
    with suppress(psutil.Error, OSError):  # it has ended
        log = Path(f"/proc/{process.pid}/fd/1")
        if log.readlink().name.startswith("worker-"):
            _, _, told = log.read_text().rpartition(ACTOR)
            return told.partition("\n")[0]
    return ""
