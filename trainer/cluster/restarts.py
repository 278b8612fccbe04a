"""How often a run repairs itself before it gives the attempt up."""

from __future__ import annotations

from collections import Counter

from trainer.config.options.logging import MOST_REPAIRS
from trainer.types import BeyondRepairError, TrainingError


class Budget:
    def __init__(self, most: int = MOST_REPAIRS) -> None:
        """`most`: repairs of one thing that no finished step follows."""
        self._most = most
        self._spent: Counter[str] = Counter()

    def spend(self, what: str, why: TrainingError) -> None:
        """One more repair of `what`. Raises BeyondRepairError where that is one too many."""
        if not self._most:
            raise BeyondRepairError(f"{why} (--max_repairs 0)") from None
        self._spent[what] += 1
        if self._spent[what] > self._most:
            raise BeyondRepairError(
                f"{what} was replaced {self._most} times without a new step. {why}"
            ) from None

    def renew(self) -> None:
        """A step is finished."""
        self._spent.clear()
