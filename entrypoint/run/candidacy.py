"""What workers say of the place of a lost head: that they wait to take it, or why they cannot.

Each keeps a file beside the head's lease. What is older than the lease's last heartbeat is of an
earlier loss, and does not count.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from contract import lease
from contract.files import stored_json
from contract.run_dir import write_atomically

PREFIX = "worker-of-"
EVERY_SECONDS = 5.0
"""Seconds after which a worker that waits says so again."""
FRESH_SECONDS = 30.0
"""Seconds for which a worker counts as one that waits."""


@dataclass(frozen=True, slots=True)
class Candidates:
    waiting: tuple[str, ...] = ()
    """Names of the workers that live, and wait to take the place."""
    refused: tuple[tuple[str, str], ...] = ()
    """Name and reason of each worker that cannot take it."""


def tell(leases: Path, node: str, why_not: str = "") -> None:
    """Say that the worker waits, or why it cannot lead. Storage that fails is tolerated."""
    with suppress(OSError):
        text = json.dumps({"node": node, "why_not": why_not})
        write_atomically(leases / f"{PREFIX}{node}", text)


def read(leases: Path) -> Candidates:
    """Return what the workers have said of the newest head's loss. Raises OSError."""
    newest = lease.newest(leases)
    if newest is None:
        return Candidates()
    beat, now = newest.stat().st_mtime, time.time()
    waiting, refused = [], []
    for path in sorted(leases.glob(f"{PREFIX}*")):
        with suppress(OSError):
            said, row = path.stat().st_mtime, stored_json.json_object(path) or {}
            node, why_not = str(row.get("node", "")), str(row.get("why_not", ""))
            if said <= beat or not node:
                continue
            if why_not:
                refused.append((node, why_not))
            elif now - said < FRESH_SECONDS:
                waiting.append(node)
    return Candidates(tuple(waiting), tuple(refused))
