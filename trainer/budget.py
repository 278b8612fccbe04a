"""How often a run repairs itself before it gives the attempt up."""

from __future__ import annotations

from collections import Counter

from trainer.types import BeyondRepairError, TrainingError

MOST = 3
"""Repairs of one thing that no finished step follows: what breaks them is still there."""


class Budget:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._spent: Counter[str] = Counter()

    def spend(self, what: str, why: TrainingError) -> None:
        """One more repair of `what`. Raises BeyondRepairError where that is one too many."""
        self._spent[what] += 1
        if self._spent[what] > self._most:
            raise BeyondRepairError(
                f"{what} was replaced {self._most} times without a new step. {why}"
            ) from None

    def renew(self) -> None:
        """A step is finished."""
        self._spent.clear()
