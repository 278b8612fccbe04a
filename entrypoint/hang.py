"""When a run that makes no progress counts as hung."""

from __future__ import annotations

import statistics
import time
from collections import deque

from trainer.contract import Progress

SHORTEST_SECONDS = 600.0
STEPS = 20
"""So many median steps without progress are a hang, where no time is given."""


class HangWatch:
    """Fed with the newest progress; knows for how long there was no newer one."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._seconds: deque[float] = deque(maxlen=50)
        self._step: int | None = None
        self._since = time.monotonic()

    def silent_for(self, progress: Progress | None) -> float | None:
        """Seconds without progress once they are too many; None before."""
        if progress is not None and progress.step != self._step:
            self._step = progress.step
            self._since = time.monotonic()
            self._seconds.append(progress.step_seconds)
        silent = time.monotonic() - self._since
        return silent if silent > limit(self._timeout, self._seconds) else None


def limit(timeout: float | None, step_seconds: deque[float]) -> float:
    """The given time, else twenty median steps, but at least ten minutes."""
    if timeout is not None:
        return timeout
    learned = STEPS * statistics.median(step_seconds) if step_seconds else 0.0
    return max(SHORTEST_SECONDS, learned)
