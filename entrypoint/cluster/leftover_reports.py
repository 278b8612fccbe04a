"""What an ended job has left on the workers: the head asks them to end it, and hears of it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class LeftoverReports:
    """Every method may be called from any thread."""

    job: str = ""
    """Ray's name for the submission that is over; "" while a job runs."""
    began: float = 0.0
    """Seconds of the monotonic clock."""
    _answered: set[str] = field(default_factory=set)
    _left: dict[str, str] = field(default_factory=dict)
    """Worker → what was there."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, job: str) -> None:
        with self._lock:
            self.job, self.began = job, time.monotonic()
            self._answered.clear()

    def end(self) -> None:
        self.job = ""

    def answer(self, node: str, job: str, left: str) -> None:
        """Note what a worker has ended; it may answer again, also when the next job runs."""
        with self._lock:
            if job == self.job:
                self._answered.add(node)
            if left:
                earlier = self._left.get(node)
                self._left[node] = f"{earlier}, {left}" if earlier else left

    def answered(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._answered)

    def take(self) -> dict[str, str]:
        """Return what workers have ended since the last call."""
        with self._lock:
            left, self._left = self._left, {}
            return left
