"""How often a run restarts a lost process before the attempt fails."""

from __future__ import annotations

from collections import Counter

from trainer.config.options.logging import MOST_REPAIRS
from trainer.types import BeyondRepairError, TrainingError


class RestartBudget:
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
