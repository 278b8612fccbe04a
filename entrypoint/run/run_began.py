"""When a run began: what `date` says in its script, also for a head that starts again."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path

from contract.run_dir import RunFiles
from entrypoint.run import run_facts


@cache
def seconds(root: Path) -> float:
    """Return when the run in a directory began, in seconds of the epoch.

    That is what its first head wrote, else the time of the first call in this process.
    """
    with suppress(OSError, ValueError, KeyError):
        return datetime.fromisoformat(run_facts.read(RunFiles(root))["created"]).timestamp()
    return time.time()
