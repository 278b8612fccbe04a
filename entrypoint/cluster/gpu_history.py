"""The use of all GPUs of the cluster over time, thinned, in the head's memory.

A head that is started again begins a new history.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from contract.metrics.charts import GPU_CHARTS
from entrypoint.machine.gpus.use import GpuUse
from entrypoint.run import curves

MOST_POINTS = 400
"""When there are more, each two become one."""
POINT_SECONDS = 5
"""Of a new history. Nodes tell as often."""
GB_OF_MIB = 2**20 / 1e9
UNKNOWN: Sequence[float | None] = (None, None, None)


@dataclass(slots=True)
class Spread:
    """The least, the mean and the most of what was told."""

    low: float = float("inf")
    high: float = float("-inf")
    total: float = 0.0
    count: int = 0

    def add(self, other: Spread) -> None:
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.total += other.total
        self.count += other.count

    def row(self, digits: int) -> list[float] | None:
        """Return least, mean and most; None if nothing was told."""
        if not self.count:
            return None
        return [round(value, digits) for value in (self.low, self.total / self.count, self.high)]


def spread(values: Iterable[float]) -> Spread:
    known = list(values)
    return Spread(min(known), max(known), sum(known), len(known)) if known else Spread()


@dataclass(slots=True)
class Use:
    """Of some GPUs."""

    busy: Spread = field(default_factory=Spread)
    """Percent."""
    memory: Spread = field(default_factory=Spread)
    """GB."""

    def add(self, other: Use) -> None:
        self.busy.add(other.busy)
        self.memory.add(other.memory)


def use_of(gpus: Sequence[GpuUse]) -> Use:
    """Pure: return the use of a node's GPUs at one time."""
    return Use(
        spread(100 * gpu.busy for gpu in gpus if gpu.busy is not None),
        spread(gpu.used * GB_OF_MIB for gpu in gpus),
    )


def as_dict(gpus: Sequence[GpuUse]) -> dict[str, Any]:
    """Pure: return a node's present use as JSON: percent, GB, and GB of its smallest GPU."""
    if not gpus:
        return {}
    use = use_of(gpus)
    total = round(min(gpu.total for gpu in gpus) * GB_OF_MIB)
    return {"busy": use.busy.row(0), "memory": use.memory.row(1), "total": total}


class GpuHistory:
    """Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._id = uuid.uuid4().hex[:8]
        self._seconds = POINT_SECONDS
        self._points: dict[int, Use] = {}
        """Number of a piece of time, since the epoch → the use in it."""

    def add(self, gpus: Sequence[GpuUse], at: float | None = None) -> None:
        """Add what a node told now, or `at` a time in seconds of the epoch."""
        if not gpus:
            return
        place = int((time.time() if at is None else at) // self._seconds)
        with self._lock:
            self._points.setdefault(place, Use()).add(use_of(gpus))
            if len(self._points) > MOST_POINTS:
                self._halve()

    def rows(self, after: int = 0, of: str = "") -> dict[str, Any]:
        """Return the points from `after` on, in the shape of a run's curves: `steps` are seconds.

        All points if the reader has those `of` another version.
        """
        with self._lock:
            version = f"{self._id}-{self._seconds}"
            first = after // self._seconds if of == version else 0
            points = sorted(item for item in self._points.items() if item[0] >= first)
            busy = [use.busy.row(0) or UNKNOWN for _, use in points]
            memory = [use.memory.row(1) or UNKNOWN for _, use in points]
            series = {**_columns("busy", busy), **_columns("memory", memory)}
            return {
                "version": version,
                "more": False,
                "steps": [place * self._seconds for place, _ in points],
                "series": series,
                "charts": curves.drawn(series, GPU_CHARTS),
            }

    def _halve(self) -> None:
        points, self._points = self._points, {}
        self._seconds *= 2
        for place, use in points.items():
            self._points.setdefault(place // 2, Use()).add(use)


def _columns(name: str, rows: Sequence[Sequence[float | None]]) -> dict[str, list[float | None]]:
    kinds = ("least", "mean", "most")
    return {f"{name}/{kind}": [row[n] for row in rows] for n, kind in enumerate(kinds)}
