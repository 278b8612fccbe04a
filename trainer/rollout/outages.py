"""Outages of rollout engines: since when an engine is missing and why, and when it comes back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainer.cluster.worker_group import WorkerGroup
from trainer.config.layout import Role
from trainer.types import LostWorkerError, NoSeatError, TrainingError


@dataclass(slots=True)
class EngineOutage:
    """An engine that is missing."""

    at: float
    """Time of a monotonic clock, in seconds, at which the driver noticed the outage."""
    error: TrainingError
    remade: int = 0
    """Samples that the engine was writing."""
    restarting: bool = False
    left_out: bool = False
    """No node had room for the engine at first."""

    @property
    def how(self) -> str:
        return self.error.how if isinstance(self.error, LostWorkerError) else str(self.error)

    def replaced(self, worker: int, seconds: float) -> str:
        return (
            f"{Role.ENGINE}-{worker} was replaced {seconds:.1f} s after it was lost ({self.how}); "
            f"{self.remade} samples were made again."
        )

    def returned(self, worker: int, seconds: float, engines: str) -> str:
        """`engines`: how many there are now, for example "2 of 3"."""
        return (
            f"{Role.ENGINE}-{worker} is back {seconds:.1f} s after it was lost ({self.how}), "
            f"because a node has room for it again: the run continues with {engines} engines."
        )


def returned(left_out: dict[int, EngineOutage], group: WorkerGroup[Any]) -> list[int]:
    """Restart each engine that a node has room for now. Returns the engines that have started."""
    for worker, outage in left_out.items():
        if outage.restarting and group.node_lost(worker):
            outage.restarting = False
        if not outage.restarting and group.try_reserve(worker):
            with suppress(NoSeatError):  # the room was lost again just now
                group.restart([worker])
                outage.restarting = True
    restarting = [worker for worker, outage in left_out.items() if outage.restarting]
    return [worker for worker in restarting if group.has_started(worker, 0)]
