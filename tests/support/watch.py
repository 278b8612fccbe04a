"""Waits for what a run tells of itself: its journal and its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from contract.journal import read_events
from contract.progress import Progress
from contract.run_dir import RunFiles

POLL_SECONDS = 0.1


class Watch:
    """A run as a test sees it; `report` is what a failed wait shows."""

    def __init__(self, run: RunFiles, report: Callable[[], str]) -> None:
        self.run = run
        self.report = report

    @property
    def step(self) -> int:
        progress = Progress.read(self.run.progress)
        return progress.step if progress else 0

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.run.journal) if event["kind"] == kind]

    def until(self, done: Callable[[], bool], what: str, *, within: float) -> None:
        """Raises AssertionError where `done` is not true within so many seconds."""
        deadline = time.monotonic() + within
        while not done():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {within:.0f} s\n{self.report()}")
            time.sleep(POLL_SECONDS)

    def event(self, kind: str, *, within: float, after: int = 0) -> dict[str, Any]:
        """The first event of its kind, or the first one after so many."""
        self.until(lambda: len(self.events(kind)) > after, f"{kind} event", within=within)
        return self.events(kind)[after]

    def goes_on(self, *, within: float) -> None:
        """Until a step is finished that was not finished when this was called."""
        self.event("step", within=within, after=len(self.events("step")))

    def resumes(self, attempts: int, *, within: float) -> None:
        """Until a step is finished by an attempt later than the first `attempts`."""
        self.until(
            lambda: any(event["attempt"] > attempts for event in self.events("step")[-1:]),
            f"step of attempt {attempts + 1}",
            within=within,
        )


def assert_no_step_is_lost_or_done_twice(run: RunFiles) -> None:
    """An attempt counts on from the step that it resumed from, which was saved somewhere."""
    saved = {0}
    at: dict[int, int] = {}
    for event in read_events(run.journal):
        kind, step, attempt = event["kind"], event["details"].get("step"), event["attempt"]
        if kind in ("checkpoint", "restore"):
            saved.add(step)
        elif kind == "resume":
            assert step in saved, f"attempt {attempt} resumes from step {step}, never saved"
            at[attempt] = step
        elif kind == "step":
            assert step == at[attempt] + 1, f"attempt {attempt}: step {step} after {at[attempt]}"
            at[attempt] = step
