"""Why a head did not start, as a note in the run directory for the workers that wait for it."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from contract import lease
from contract.redaction import redact
from contract.run_dir import RunFiles, write_atomically
from entrypoint.config.settings import Settings

log = logging.getLogger(__name__)

NODE_BEGAN = time.time()
"""When this node's process began, in seconds since 1970: before its checks, which take a while."""


class HeadUnfitError(Exception):
    """The head that a worker waits for has failed its checks; the sentence says which."""


def tell(settings: Settings, exit_code: int, reason: str) -> None:
    """Leave the note. A run directory that cannot be written is tolerated: workers then wait."""
    name = "" if settings.node_name == "head" else f" {settings.node_name}"
    text = f"the head{name} does not start and has ended with {exit_code}: {reason}"
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


@dataclass(slots=True)
class NoteWatch:
    """Looks for the note of a head that fails while a worker waits for it.

    An older note is of an earlier try: nodes start in any order, so the repaired head may come
    after this worker. Nor does a note count that is older than a lease's last heartbeat: another
    head lives, or has lived since.
    """

    run: RunFiles
    began: float = NODE_BEGAN
    """When the worker began, in seconds since 1970."""
    _told: str = field(init=False, default="")
    """The older note that the log has."""

    def check(self) -> None:
        """Raises HeadUnfitError if the head has failed since the worker began.

        An older note is told in the log, once.
        """
        try:
            with self.run.unfit.open(errors="replace") as file:
                written = os.fstat(file.fileno()).st_mtime
                text = file.read()
        except OSError:
            return
        if written <= _last_heartbeat(self.run.leases):
            return
        if written > self.began:
            raise HeadUnfitError(f"{text}; repair it, and start all nodes again")
        if text != self._told:
            self._told = text
            log.warning("before this node began: %s; this node waits for a head that starts", text)


def _last_heartbeat(leases: Path) -> float:
    """Return when the newest lease was written, in seconds since 1970; 0 if there is none."""
    try:
        newest = lease.newest(leases)
        return newest.stat().st_mtime if newest else 0.0
    except OSError:
        return 0.0
