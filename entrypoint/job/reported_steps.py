"""Records steps in the journal for a command that reports them in progress.json alone.

`report` reads only the journal. Many steps in a short time become one event, because each event
costs a sync of a file that is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from contract.progress import Progress, held_out
from entrypoint import console
from entrypoint.run.journal import Journal

EVERY_SECONDS = 10.0
MEASURES = ("reward", "kl", "loss")
"""Fields of the progress that are in the event of a step."""


@dataclass(slots=True)
class ReportedSteps:
    """Records the steps of one attempt, unless the trainer records them itself."""

    journal: Journal
    resume_from: int
    before: int
    """Newest step of earlier attempts."""
    clock: Callable[[], float] = time.monotonic
    _records: bool | None = None
    """None until the attempt has reported its first progress."""
    _newest: Progress | None = None
    _recorded: int = 0
    _accuracy: float | None = None
    """The held-out accuracy that is in the journal."""
    _recorded_at: float = field(init=False, default=float("-inf"))

    def see(self, progress: Progress) -> None:
        """Take the newest progress, which must be this attempt's."""
        if self._records is None:
            self._accuracy = progress.eval if self.before else None  # of an earlier attempt
            with suppress(OSError):  # asked again with the next
                self._records = not self._job_records()
            if self._records:
                self._begin(start(self.resume_from, self.before, progress.step))
        self._newest = progress
        if self._records and self.clock() - self._recorded_at >= EVERY_SECONDS:
            self._record()

    def close(self) -> None:
        """Record what is left at the end of the attempt."""
        if self._records:
            self._record()

    def _job_records(self) -> bool:
        events = self.journal.landmarks("step")
        return any(event["attempt"] == self.journal.attempt for event in events)

    def _begin(self, step: int) -> None:
        sentence = f"the job goes on after step {step}" if step else "the job begins"
        with suppress(OSError):
            self.journal.write("resume", sentence, step=step)
        self._recorded = step

    def _record(self) -> None:
        """Record the newest step; what storage does not take now is part of the next event."""
        progress = self._newest
        if progress is None or (progress.step, progress.eval) == (self._recorded, self._accuracy):
            return
        if progress.step < self._recorded:
            self._begin(progress.step)
            return
        made, step = progress.step - self._recorded, progress.step
        told = {name: getattr(progress, name) for name in MEASURES}
        told = {name: value for name, value in told.items() if value is not None}
        with suppress(OSError):
            if made:
                sentence = console.sentence(progress)
                self.journal.write("step", sentence, step=step, steps=made, **told)
                self._recorded, self._recorded_at = step, self.clock()
            if progress.eval is not None and progress.eval != self._accuracy:
                what, value = held_out(progress.eval, is_reward=progress.eval_is_reward)
                sentence = f"Held-out {what} after step {step}: {value}."
                self.journal.write("eval", sentence, step=step, accuracy=progress.eval)
            self._accuracy = progress.eval


def start(resume_from: int, before: int, first_seen: int) -> int:
    """Pure: return the step after which an attempt continues.

    A command that reported no checkpoint may have its own, and its first step may be missed.
    """
    return resume_from or max(0, min(before, first_seen - 1))
