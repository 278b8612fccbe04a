"""Engines that are missing: since when and why; and those that no place was found for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainer.cluster.worker_group import WorkerGroup
from trainer.types import LostWorkerError, NoSeatError, TrainingError

ROLE = "engine"


@dataclass(slots=True)
class Loss:
    """An engine that is missing."""

    at: float
    """When it was noticed; a monotonic clock's seconds."""
    why: TrainingError
    remade: int = 0
    """Samples that it was at."""
    started: bool = False
    """Whether the new one is on its way."""
    left_out: bool = False
    """Whether no place was found for it at first."""

    @property
    def how(self) -> str:
        return self.why.how if isinstance(self.why, LostWorkerError) else str(self.why)

    def replaced(self, worker: int, seconds: float) -> str:
        return (
            f"{ROLE}-{worker} was replaced {seconds:.1f} s after it was lost ({self.how}); "
            f"{self.remade} samples were made anew."
        )

    def returned(self, worker: int, seconds: float, engines: str) -> str:
        """`engines`: how many there are again, as in 2 of 3."""
        return (
            f"{ROLE}-{worker} is back {seconds:.1f} s after it was lost ({self.how}), as there is "
            f"a place for it again: the run goes on with {engines} engines."
        )


def returned(left_out: dict[int, Loss], group: WorkerGroup[Any]) -> list[int]:
    """Those left out that have started again; where a place is found, one begins to."""
    for worker, loss in left_out.items():
        if loss.started and group.node_lost(worker):
            loss.started = False
        if not loss.started and group.try_reserve(worker):
            with suppress(NoSeatError):  # it was lost again just now
                group.restart([worker])
                loss.started = True
    started = [worker for worker, loss in left_out.items() if loss.started]
    return [worker for worker in started if group.has_started(worker, 0)]
