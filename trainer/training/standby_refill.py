"""Replaces the standby ranks that a run has taken, after its steps."""

from __future__ import annotations

from trainer.cluster.standby import StandbyRanks
from trainer.metrics.callbacks import Callback, StepEnd


class StandbyRefill(Callback):
    """Replaces standby ranks that were taken, once the run has settled."""

    def __init__(self, standby: StandbyRanks) -> None:
        self._standby = standby

    def on_step_end(self, step: StepEnd) -> None:
        self._standby.step_finished()
