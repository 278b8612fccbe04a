"""Decides when a job that shows no sign of life counts as hung.

trainer/cluster/heartbeat.py finds a silent rank of the own trainer. entrypoint/job/ranks_behind.py
names the ranks that the others wait for.

If the trainer reports each finished part of a step (`RUN/.phase`), every part has its own limit:
a rollout may wait long for a tool, an update may not wait long for a dead peer. If it reports only
steps, the limit is learned from their durations, after the first step. If it reports no steps
either, the only sign of life is its log, and only the user can say how long a log may be silent.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from contract.durations import duration
from contract.progress import RESTORE, Phase, Progress
from entrypoint.config.durations import SHORTEST_HANG
from entrypoint.config.settings import DebugRay, Settings
from entrypoint.job.command_identity import is_same

FROZEN_SECONDS = 5.0
"""A head that has not looked for so much longer than usual was frozen, or its storage was."""
START_SECONDS = 1800.0
"""Limit until the first sign of life: models are loaded, perhaps from a slow disk."""
COMPUTING_SECONDS = 120.0
"""Shortest limit for a part in which only the cluster computes, once its usual length is known."""
COMPUTING_AFTER = frozenset({"reward", "forward", "update"})
KNOWN_STARTS = 3
"""The usual length of a program's start is known after this many."""
MIN_SAMPLES = 10
"""The usual length of a part is known after this many samples."""
MEDIAN_FACTOR, MAX_FACTOR = 20.0, 3.0
"""A hang is longer than these multiples of the median and of the maximum seen so far."""
STEP, START = "step", "start"
"""After START comes the first step of an attempt, in which models are loaded before it."""
STARTS = frozenset({"repair", RESTORE, START})
"""Phases that begin a start: models are loaded."""
WRITES = frozenset({"save", "export"})
"""Phases in which a Trainer writes a model or its optimizer, perhaps to a slow disk."""


def given_timeout(settings: Settings) -> float | None:
    """Return the limit that the settings give, in seconds without a step; None: it is learned.

    A job with a debugger never hangs, unless the user sets ROLLCALL_HANG_TIMEOUT.
    """
    debugged = settings.debug_ray is not DebugRay.OFF
    return settings.hang_timeout or (math.inf if debugged else None)


class HangWatch:
    """Watches the job's progress, attempt after attempt, and learns how long each part takes."""

    def __init__(
        self,
        timeout: float | None,
        service_outage: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        tells_phases: bool = True,
        starts: Iterable[float] = (),
    ) -> None:
        """`timeout`: the user's limit, in seconds without a step; None: learn it.

        `service_outage`: seconds for which the trainer itself waits for a service that is down;
        `starts`: seconds until the first step of attempts that an earlier head has watched.
        """
        self._timeout = timeout
        self._service_outage = service_outage
        self._tells_phases = tells_phases
        self._clock = clock
        self._gaps: dict[str, deque[float]] = {}
        if known := deque(starts, maxlen=50):
            self._gaps[START] = known
        self._seen: tuple[int | None, Phase | None] | None = None
        self._lines = 0
        self.begin()

    def begin(self) -> None:
        """Start a new attempt. The files on disk are still those of the attempt before."""
        self._seen = None
        self._after = None if self._tells_phases else START
        self._since = self._step_since = self._heard = self._clock()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the newest sign of life."""
        return self._clock() - max(self._since, self._heard)

    def leave_out(self, seconds: float) -> None:
        """The head saw nothing for so long: that is no silence of the job."""
        now = self._clock()
        self._since, self._step_since, self._heard = (
            min(now, at + seconds) for at in (self._since, self._step_since, self._heard)
        )

    def look(self, progress: Progress | None, phase: Phase | None, lines: int = 0) -> str | None:
        """Return a sentence if the job hangs.

        `phase`: the newest phase of this attempt; `lines`: number of lines in the job's log.
        """
        now, step = self._clock(), progress.step if progress else None
        if self._seen is None:
            self._seen = step, phase
        if not self._tells_phases and progress is None:
            return self._silence(now, lines)
        if self._seen != (step, phase):
            if step != self._seen[0]:
                self._step_since = now
            self._learn(now - self._since)
            self._seen, self._since = (step, phase), now
            self._after = phase.done if phase else STEP
        return self._hang(now, phase)

    def _silence(self, now: float, lines: int) -> str | None:
        """Judge a job that reports no steps by its log alone."""
        if lines != self._lines:
            self._lines, self._heard = lines, now
        silent = now - self._heard
        if self._timeout is None or silent <= self._timeout:
            return None
        return f"nothing in the job's log for {duration(silent)}"

    def _learn(self, seconds: float) -> None:
        for after in (START, STEP) if self._after == START else (self._after,):
            if after is not None:
                self._gaps.setdefault(after, deque(maxlen=50)).append(seconds)

    def _hang(self, now: float, phase: Phase | None) -> str | None:
        if self._timeout is not None:
            silent = now - self._step_since
            return f"no step for {duration(silent)}" if silent > self._timeout else None
        silent = now - self._since
        if self._after is None:
            is_hang = silent > START_SECONDS
            return f"nothing from the job for {duration(silent)}" if is_hang else None
        gaps = self._gaps.get(self._after, ())
        if not gaps and not self._tells_phases and self._after not in WRITES:
            return None
        if silent <= limit(self._after, list(gaps), self._service_outage):
            return None
        where = f"after {phase.done!r} of step {phase.step}" if phase else "after the last step"
        where = "since the start" if self._after == START else where
        usual = f", which took at most {duration(max(gaps))} before" if gaps else ""
        return f"nothing {where} for {duration(silent)}{usual}"


def start_seconds(events: Iterable[Mapping[str, Any]], command: str) -> list[float]:
    """Pure: return the seconds from start to first step of each attempt that reported a step.

    `events`: of the run's journal; `command`: a fingerprint, attempts of other commands are left
    out.
    """
    started: dict[int | None, datetime] = {}
    found = []
    for event in events:
        number, at = event["attempt"], datetime.fromisoformat(event["at"])
        if event["kind"] == "attempt":
            if is_same(event["details"].get("command"), command):
                started[number] = at
        elif event["kind"] in ("resume", "step") and number in started:
            found.append(max(0.0, (at - started.pop(number)).total_seconds()))
    return found


def limit(after: str, gaps: Sequence[float], service_outage: float = 0.0) -> float:
    """Return how many seconds without a sign of life are a hang, after the phase `after` has ended.

    `gaps`: seconds that the next sign took before; `service_outage`: seconds that a service may be
    down.
    """
    computing = after in COMPUTING_AFTER and len(gaps) >= MIN_SAMPLES
    floor = COMPUTING_SECONDS if computing else max(SHORTEST_HANG, 1.1 * service_outage)
    if after in STARTS | WRITES and not (after == START and len(gaps) >= KNOWN_STARTS):
        floor = max(floor, START_SECONDS)
    if not gaps:
        return floor
    if after == START:  # there are few, and twenty times a long one are hours
        return max(floor, MAX_FACTOR * max(gaps))
    return max(floor, MEDIAN_FACTOR * statistics.median(gaps), MAX_FACTOR * max(gaps))
