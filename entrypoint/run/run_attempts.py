"""How far a run is in its attempts: what its progress says, if the present attempt has told it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from contract.journal_file.index import landmarks
from contract.progress import Progress
from entrypoint.run.attempt_ends import READ, Failures


@dataclass(frozen=True, slots=True)
class RunAttempts:
    attempt: int
    """The newest; 0 before the first."""
    failures: int
    """That have ended attempts so far, with those of heads that were lost."""
    is_starting: bool
    """The newest attempt goes on, and has told no step yet."""
    progress: Progress | None
    """Without speed and time left, unless the newest attempt trains and has told it."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the head's state."""
        return {
            "attempt": self.attempt,
            "failures": self.failures,
            "is_starting": self.is_starting,
            "progress": self.progress and self.progress.as_dict(),
        }


def read(journal: Path, progress: Progress | None, *, trains: bool) -> RunAttempts:
    """Return the attempts of a run. `trains`: an attempt runs now. Raises OSError."""
    attempt, failures, began = 0, 0, ""
    found = Failures()
    for event in landmarks(journal).events(READ):
        failures += bool(found.of(event["kind"], event["details"]))
        if event["kind"] == "attempt":
            attempt, began = event["attempt"] or attempt + 1, event["at"]
    is_told = progress is not None and _is_of(progress, attempt, began)
    if progress is not None and not (trains and is_told):
        progress = replace(progress, tokens_per_second=0.0, step_seconds=0.0, eta_seconds=0.0)
    return RunAttempts(attempt, failures, trains and attempt > 0 and not is_told, progress)


def _is_of(progress: Progress, attempt: int, began: str) -> bool:
    """Whether the attempt has told the progress. A user's command may not say its attempt."""
    if progress.attempt:
        return attempt in (0, progress.attempt)  # 0: the journal was lost
    return not began or datetime.fromisoformat(progress.at) >= datetime.fromisoformat(began)
