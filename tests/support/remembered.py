"""A directory that stands for the nodes' memory of the newest step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint.protocol import Snapshot
from trainer.checkpoint.writer import DriverState, RunState
from trainer.cluster.worker_group import WorkerGroup
from trainer.workers.protocols import Learner

LEAN = {"advantage_estimator": "group_norm", "init_kl_coef": 0}


@dataclass
class Remembered:
    """Stands for `Replicator`: holds the newest step, over attempts, in a directory."""

    root: Path
    driver: DriverState | None = None
    complete: int | None = None
    on: bool = True
    last: int | None = None
    """No later step is taken."""

    def replicate(self, driver: DriverState, learners: Mapping[str, WorkerGroup[Learner]]) -> None:
        if self.last is not None and driver.run.step > self.last:
            return
        directory = self.held(driver.run.step)
        directory.mkdir(parents=True, exist_ok=True)
        for group in learners.values():
            group.call_ranks(Learner.save, driver.run.step, directory).result()
        self.driver, self.complete = driver, driver.run.step

    def wait(self) -> bool:
        """Return True: there is nothing to wait for."""
        return True

    def amend(self, run: RunState) -> None:
        if self.driver and self.driver.run.step == run.step:
            self.driver = DriverState(run, self.driver.in_flight)

    def newest(self, at_most: int | None = None) -> Snapshot | None:
        later = self.driver and at_most is not None and self.driver.run.step > at_most
        return Snapshot(self.driver, ()) if self.driver and not later else None

    def adopt(self, snapshot: Snapshot) -> None:
        """It is kept as it is."""

    def discard(self) -> None:
        self.driver = self.complete = None

    def held(self, step: int) -> Path:
        return self.root / str(step)
