"""Why a head did not start, as a note in the run directory for the workers that wait for it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from contract import lease
from contract.redaction import redact
from contract.run_dir import RunFiles, write_atomically
from entrypoint.config.settings import Settings

TOGETHER_SECONDS = 60.0
"""A note that is older when a worker begins to wait belongs to an earlier start of the cluster."""


class HeadUnfitError(Exception):
    """The head that a worker waits for has failed its checks; the sentence says which."""


def tell(settings: Settings, exit_code: int, reason: str) -> None:
    """Leave the note. A run directory that cannot be written is tolerated: workers then wait."""
    text = f"the head {settings.node_name} does not start and has ended with {exit_code}: {reason}"
    with suppress(OSError):
        write_atomically(RunFiles(settings.run_dir).unfit, redact(text, settings.secrets))


def forget(settings: Settings) -> None:
    """Remove the note of an earlier start."""
    with suppress(OSError):
        RunFiles(settings.run_dir).unfit.unlink(missing_ok=True)


def read(run: RunFiles) -> str:
    """Return the note; "" if there is none, or it cannot be read."""
    with suppress(OSError):
        return run.unfit.read_text(errors="replace").strip()
    return ""


def check(run: RunFiles, began: float) -> None:
    """Raises HeadUnfitError if there is a note for a worker that has waited since `began`.

    `began`: seconds since 1970. A note that is older than a lease's last heartbeat does not count:
    another head lives, or has lived since.
    """
    try:
        with run.unfit.open(errors="replace") as file:
            written = os.fstat(file.fileno()).st_mtime
            text = file.read()
    except OSError:
        return
    if written > began - TOGETHER_SECONDS and written > _last_heartbeat(run.leases):
        raise HeadUnfitError(f"{text}; repair it, and start all nodes again")


def _last_heartbeat(leases: Path) -> float:
    """Returns when the newest lease was written, in seconds since 1970; 0 if there is none."""
    try:
        newest = lease.newest(leases)
        return newest.stat().st_mtime if newest else 0.0
    except OSError:
        return 0.0
