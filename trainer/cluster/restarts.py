"""How long a run waits for its processes, and how often it restarts a lost process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trainer.config.options.checkpoints import MOST_REPAIRS
from trainer.types import BeyondRepairError, LostWorkerError, TrainingError


class WorkerRestartBudget:
    """Counts restarts for each role or engine since the newest step that was finished first."""

    def __init__(self, most: int = MOST_REPAIRS) -> None:
        """`most`: restarts of the same role or engine without a new finished step."""
        self._most = most
        self._used: Counter[str] = Counter()
        self._newest_step = 0

    def use(self, name: str, loss: TrainingError) -> None:
        """Count a restart of `name`. Raises BeyondRepairError if that is one too many."""
        if not self._most:
            raise BeyondRepairError(f"{loss} (--max_repairs 0)") from None
        self._used[name] += 1
        if self._used[name] > self._most:
            raise BeyondRepairError(
                f"{name} was replaced {self._most} times without a new step. {loss}"
            ) from None

    def step_finished(self, step: int) -> None:
        """Reset all counts if no step as late as `step` was finished before.

        A repeated step resets nothing: it does not show that the restarts helped.
        """
        if step > self._newest_step:
            self._newest_step = step
            self._used.clear()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the driver waits for the processes of a run, in seconds."""

    start: float = 1800.0
    """Until a process has loaded its model."""
    part: float = 120.0
    """For one bucket of weights, or for one change of state."""
    life: float = 120.0
    """For an answer that the process lives, also while it computes."""
    restart_eagerly: bool = True
    """Restart a lost engine immediately. False when its GPU is shared: restart the engine at the
    next weight update and wait for it."""


def silent(name: str, role: str, how: str) -> LostWorkerError:
    """Return the error of a process that did not answer. `how`: "for ..." or "within ..."."""
    return LostWorkerError(f"{name} did not answer {how}", role, f"it did not answer {how}")
