"""What a job writes down of itself, beside its run directory: each start, step and checkpoint."""

from __future__ import annotations

import json
import os
import time

from contract.journal import timestamp

PATH = "JOB_RECORD"
"""Variable: the file, to which each row is appended in one write."""
PAUSE = "JOB_PAUSE"
"""Variable: seconds to wait after each step, as where it takes longer."""


def write(kind: str, step: int, **details: float) -> None:
    """`kind`: "begin" (after this step), "step" (with its loss) or "saved" (a whole checkpoint)."""
    attempt = int(os.environ.get("ROLLCALL_ATTEMPT", "0"))
    row = {"at": timestamp(), "attempt": attempt, "kind": kind, "step": step, **details}
    descriptor = os.open(os.environ[PATH], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, json.dumps(row).encode() + b"\n")
    finally:
        os.close(descriptor)


def pause() -> None:
    time.sleep(float(os.environ.get(PAUSE, "0")))
