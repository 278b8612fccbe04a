"""How far a run is in its attempts: what its progress says, if the present attempt has told it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contract.journal_file.index import landmarks
from contract.progress import Progress
from entrypoint.run.attempt_ends import READ, Failures

TELLS_STEPS = "tells_steps"
"""Detail of the journal's `attempt`: whether the job's log, or its trainer, tells steps."""


@dataclass(frozen=True, slots=True)
class RunAttempts:
    attempt: int
    """The newest; 0 before the first."""
    failures: int
    """That have ended attempts so far, with those of heads that were lost."""
    is_starting: bool
    """The newest attempt goes on, and has not told a step yet that it is to tell."""
    progress: Progress | None
    """Without speed and time left, unless the newest attempt trains and has told it."""
    tells_steps: bool = True
    """False for a command whose log tells none, and that has reported none."""
    seconds: float | None = None
    """Since the newest attempt began; None if it does not go on."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the head's state."""
        return {
            "attempt": self.attempt,
            "failures": self.failures,
            "is_starting": self.is_starting,
            "tells_steps": self.tells_steps,
            "attempt_seconds": self.seconds,
            "progress": self.progress and self.progress.as_dict(),
        }


def read(journal: Path, progress: Progress | None, *, trains: bool) -> RunAttempts:
    """Return the attempts of a run. `trains`: an attempt runs now. Raises OSError."""
    attempt, failures, began, tells_steps = 0, 0, "", True
    found = Failures()
    for event in landmarks(journal).events(READ):
        failures += bool(found.of(event["kind"], event["details"]))
        if event["kind"] == "attempt":
            attempt, began = event["attempt"] or attempt + 1, event["at"]
            tells_steps = bool(event["details"].get(TELLS_STEPS, True))
    is_told = progress is not None and _is_of(progress, attempt, began)
    if progress is not None and not (trains and is_told):
        progress = replace(progress, tokens_per_second=0.0, step_seconds=0.0, eta_seconds=0.0)
    goes_on, tells_steps = trains and attempt > 0, tells_steps or progress is not None
    seconds = _seconds_since(began) if goes_on and began else None
    is_starting = goes_on and tells_steps and not is_told
    return RunAttempts(attempt, failures, is_starting, progress, tells_steps, seconds)


def _seconds_since(at: str) -> float:
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds())


def _is_of(progress: Progress, attempt: int, began: str) -> bool:
    """Whether the attempt has told the progress. A user's command may not say its attempt."""
    if progress.attempt:
        return attempt in (0, progress.attempt)  # 0: the journal was lost
    return not began or datetime.fromisoformat(progress.at) >= datetime.fromisoformat(began)
