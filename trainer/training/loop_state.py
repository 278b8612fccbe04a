"""What the training loop has done since its newest step: it decides what is due next."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.checkpoint.writer import RunState
from trainer.types import LostWorkerError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """The run state after its newest step, and what the loop has done since that step."""

    run: RunState
    lost: LostWorkerError | None = None
    """The loss of a process that the run has not recovered from yet."""
    published: bool = False
    """The engines have the policy's weights of this step."""
    awake: bool = False
    """The engines also have the memory that they need to write. It may be the models' otherwise."""
    held: bool = True
    """The step was given to replication, or was restored from there or from a checkpoint."""
    saved: bool = True
    """A checkpoint of the step was begun, or is not due."""
    complete: bool = False
    """The step's checkpoint is known to be complete."""
    exported: bool = False
    """The final model is written."""

    @property
    def step(self) -> int:
        return self.run.step
