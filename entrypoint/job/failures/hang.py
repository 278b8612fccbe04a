"""When a run that shows no sign of life counts as hung.

A trainer that says which part of a step is over is watched part by part, since a rollout that waits
for a tool is not an update that waits for a dead peer. Of any other, finished steps are all there
is to see, and nothing is known of how long one takes until the first is; of one that does not tell
its steps either, there is only its log, and only the user can know how long that may be silent.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

from contract.progress import Phase, Progress
from entrypoint.config.settings import DebugRay, Settings

START_SECONDS = 1800.0
"""Until the first sign of life: models are loaded, perhaps from a slow disk."""
SHORTEST_SECONDS = 600.0
COMPUTING_SECONDS = 120.0
"""The floor where nothing but the cluster's own work follows, once its length is known."""
COMPUTING_AFTER = frozenset({"reward", "forward", "update"})
KNOWN = 10
"""So many times seen, the length of a part is known."""
MEDIANS, LONGEST = 20.0, 3.0
"""A hang is longer than so many medians, and than so many times the longest ever seen."""
STEP = "step"
REPAIR = "repair"
"""What is said when a repair begins: models are loaded then."""


def given_timeout(settings: Settings) -> float | None:
    """Seconds without a step that are a hang; None: it is learned. A job that waits in a debugger
    does not hang, unless the user says after how long it does."""
    debugged = settings.debug_ray is not DebugRay.OFF
    return settings.hang_timeout or (math.inf if debugged else None)


class HangWatch:
    """Fed with what the driver tells; what it has learned outlives an attempt."""

    def __init__(
        self,
        timeout: float | None,
        outage: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        tells_phases: bool = True,
    ) -> None:
        """`timeout`: seconds without a step, where the user gives them; `outage`: for how long the
        trainer itself waits for a service that is down."""
        self._timeout = timeout
        self._outage = outage
        self._tells_phases = tells_phases
        self._clock = clock
        self._gaps: dict[str, deque[float]] = {}
        self._seen: tuple[int | None, Phase | None] | None = None
        self._lines = 0
        self.begin()

    def begin(self) -> None:
        """A new attempt starts: what is on disk is of the one before."""
        self._seen = None
        self._after = None if self._tells_phases else STEP
        self._since = self._step_since = self._heard = self._clock()

    @property
    def silent_seconds(self) -> float:
        """Since the newest sign of life."""
        return self._clock() - max(self._since, self._heard)

    def look(self, progress: Progress | None, phase: Phase | None, lines: int = 0) -> str | None:
        """The sentence of a hang, once there is one. `phase`: this attempt's newest; `lines`: how
        many the job's log has."""
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
        """Of a job that tells nothing but what it prints."""
        if lines != self._lines:
            self._lines, self._heard = lines, now
        silent = now - self._heard
        if self._timeout is None or silent <= self._timeout:
            return None
        return f"nothing in the job's log for {silent:.0f} s"

    def _learn(self, seconds: float) -> None:
        if self._after is not None:
            self._gaps.setdefault(self._after, deque(maxlen=50)).append(seconds)

    def _hang(self, now: float, phase: Phase | None) -> str | None:
        if self._timeout is not None:
            silent = now - self._step_since
            return f"no step for {silent:.0f} s" if silent > self._timeout else None
        silent = now - self._since
        if self._after is None:
            return f"nothing from the job for {silent:.0f} s" if silent > START_SECONDS else None
        gaps = self._gaps.get(self._after, ())
        if not gaps and not self._tells_phases:
            return None
        if silent <= limit(self._after, list(gaps), self._outage):
            return None
        where = f"after {phase.done!r} of step {phase.step}" if phase else "after the last step"
        usual = f", which took at most {max(gaps):.1f} s before" if gaps else ""
        return f"nothing {where} for {silent:.0f} s{usual}"


def limit(after: str, gaps: Sequence[float], outage: float = 0.0) -> float:
    """Seconds without a sign of life that are a hang, where the last sign was the end of `after`.

    `gaps`: how long it took before, seconds; `outage`: how long a service may be down.
    """
    computing = after in COMPUTING_AFTER and len(gaps) >= KNOWN
    floor = COMPUTING_SECONDS if computing else max(SHORTEST_SECONDS, 1.1 * outage)
    if after == REPAIR:
        floor = max(floor, START_SECONDS)
    if not gaps:
        return floor
    return max(floor, MEDIANS * statistics.median(gaps), LONGEST * max(gaps))
