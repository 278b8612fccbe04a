"""How far a run is in its attempts: what its progress says, if the present attempt has told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from contract.exit_codes import RESUMES
from contract.files.os_errors import with_path
from contract.journal import NO_REWARD
from contract.journal_file.index import Landmarks, landmarks
from contract.journal_file.lines import event_of, may_be
from contract.progress import Progress
from entrypoint.run.attempt_ends import READ, Failures
from entrypoint.run.failure_classes import cause_of
from entrypoint.run.flight_record.record import FINISHED
from entrypoint.run.flight_record.remedies import remedy
from entrypoint.run.flight_record.time_accounting import GOES_BACK

TELLS_STEPS = "tells_steps"
"""Detail of the journal's `attempt`: whether the job's log, or its trainer, tells steps."""

RESUME = "resume"
BEFORE_BYTES = 2**20
"""Before an event, so many have the step that was finished last, with thousands of nodes, too."""


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
    steps_lost: int = 0
    """Finished steps that the run has gone back over: it makes them again."""
    no_reward: str = ""
    """What the newest attempt has told of samples without a reward."""
    last_failure: Mapping[str, Any] | None = None
    """Why no attempt makes steps now: the newest failure, and how many came in a row (`in_vain`).
    None while an attempt makes steps, and before the first failure."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the head's state."""
        return {
            "attempt": self.attempt,
            "failures": self.failures,
            "is_starting": self.is_starting,
            "tells_steps": self.tells_steps,
            "attempt_seconds": self.seconds,
            "steps_lost": self.steps_lost,
            "no_reward": self.no_reward,
            "last_failure": self.last_failure,
            "progress": self.progress and self.progress.as_dict(),
        }


def read(journal: Path, progress: Progress | None, *, trains: bool) -> RunAttempts:
    """Return the attempts of a run. `trains`: an attempt runs now. Raises OSError."""
    attempt, failures, began, tells_steps, no_reward = 0, 0, "", True, ""
    found = Failures()
    failure: dict[str, Any] | None = None
    known = landmarks(journal)
    for event in known.events((*READ, NO_REWARD, "step")):
        failures += bool(found.of(event["kind"], event["details"]))
        if event["kind"] == "attempt":
            attempt, began, no_reward = event["attempt"] or attempt + 1, event["at"], ""
            tells_steps = bool(event["details"].get(TELLS_STEPS, True))
        elif event["kind"] == NO_REWARD:
            no_reward = event["sentence"]
        if event["kind"] in ("start", "step"):
            failure = None
        elif event["kind"] == "failure":
            failure = _told(event, after=failure)
    is_told = progress is not None and _is_of(progress, attempt, began)
    if progress is not None and not (trains and is_told):
        progress = replace(progress, tokens_per_second=0.0, step_seconds=0.0, eta_seconds=0.0)
    if progress is not None and not is_told:
        progress = replace(progress, step=min(progress.step, gone_back_to(known, progress.step)))
    goes_on, tells_steps = trains and attempt > 0, tells_steps or progress is not None
    seconds = _seconds_since(began) if goes_on and began else None
    is_starting = goes_on and tells_steps and not is_told
    lost = steps_lost(journal, known)
    makes_steps = goes_on and not is_starting
    told = (tells_steps, seconds, lost, no_reward, None if makes_steps else failure)
    return RunAttempts(attempt, failures, is_starting, progress, *told)


def _told(event: Mapping[str, Any], after: Mapping[str, Any] | None) -> dict[str, Any]:
    """Pure: return a failure as a state tells it. `after`: the one before, if no step came since.

    `to_do` is for a run that goes on: nobody has to start it again.
    """
    details = event["details"]
    to_do = remedy("failed", None, str(details["failure"]), str(details.get("service", "")))
    return {
        "cause": cause_of(details, str(event["sentence"])),
        "place": str(details.get("place", "")),
        "to_do": to_do.removesuffix(RESUMES).strip(),
        "in_vain": 1 + (after["in_vain"] if after else 0),
    }


def gone_back_to(known: Landmarks, step: int) -> int:
    """Pure: return the step from which the newest attempt goes on; `step` if it has made one."""
    back = step
    for event in known.events((RESUME, "step")):
        back = int(event["details"]["step"]) if event["kind"] == RESUME else step
    return back


def steps_lost(journal: Path, known: Landmarks) -> int:
    """Return how many finished steps the run has gone back over. Raises OSError."""
    back = [(end, line) for end, line in known.kept if may_be(line, GOES_BACK)]
    return sum(_lost(journal, end, line) for end, line in back)


@lru_cache(maxsize=1024)
def _lost(journal: Path, end: int, line: bytes) -> int:
    """Return how many finished steps an event has gone back over; 0 if it is no such event.

    `line`: the event's, which ends at `end`. Raises OSError.
    """
    event = event_of(line)
    if event is None or event["kind"] not in GOES_BACK:
        return 0
    until = end - len(line)
    begin = max(0, until - BEFORE_BYTES)
    with with_path(journal), journal.open("rb") as file:
        file.seek(begin)
        before = file.read(until - begin)
    kinds = (*FINISHED, *GOES_BACK)
    for earlier in reversed(before.splitlines()):
        if not may_be(earlier, kinds) or (found := event_of(earlier)) is None:
            continue
        if found["kind"] in kinds:
            return max(0, int(found["details"]["step"]) - int(event["details"]["step"]))
    return 0


def _seconds_since(at: str) -> float:
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds())


def _is_of(progress: Progress, attempt: int, began: str) -> bool:
    """Whether the attempt has told the progress. A user's command may not say its attempt."""
    if progress.attempt:
        return attempt in (0, progress.attempt)  # 0: the journal was lost
    return not began or datetime.fromisoformat(progress.at) >= datetime.fromisoformat(began)
