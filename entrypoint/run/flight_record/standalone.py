"""Whether a run that a trainer without a head has started goes on, from its run directory."""

from __future__ import annotations

import time
from contextlib import suppress

from contract import lease
from contract.durations import duration
from contract.journal import EXPORT
from contract.journal_file.index import landmarks
from contract.launch import standalone
from contract.run_dir import RunFiles
from entrypoint.run.attempt_ends import TRAINER_LOST
from entrypoint.run.flight_record.record import RUNNING
from entrypoint.run.lost_head import to_do

UNTOLD_SECONDS = 3600.0
"""A run of an earlier version, which has no sign of life, goes on if its files are younger."""


def state_of(run: RunFiles) -> tuple[str, str] | None:
    """Return state and sentence of such a run that has told no end; None if a head leads it.

    Raises OSError.
    """
    events = list(landmarks(run.journal).events(["start", EXPORT, "resume"]))
    start = next((event for event in reversed(events) if event["kind"] == "start"), None)
    if start is None and lease.newest(run.leases) is None:
        if events and events[-1]["kind"] == EXPORT:
            return "finished", str(events[-1]["sentence"])
        return _after(_age(run), UNTOLD_SECONDS)
    if not standalone.is_by_trainer(start):
        return None
    silent = standalone.silence(run)
    again = str(start["details"].get("resume", "")) if start else ""
    silent = _age(run) if silent is None else silent
    return _after(silent, standalone.SILENCE_SECONDS, again)


def _after(silent: float, limit: float, again: str = "") -> tuple[str, str]:
    """`again`: the command that starts the trainer again, if it is known."""
    if silent < limit:
        return RUNNING, ""
    ago = duration(silent)
    return TRAINER_LOST, f"the trainer ended without saying so {ago} ago: {to_do(again)}"


def _age(run: RunFiles) -> float:
    """Return the seconds since the run's files have changed last."""
    newest = 0.0
    for path in (run.journal, run.metrics, run.progress, run.phase):
        with suppress(FileNotFoundError):
            newest = max(newest, path.stat().st_mtime)
    return max(0.0, time.time() - newest)
