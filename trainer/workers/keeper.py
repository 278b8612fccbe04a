"""What a run keeps of a model that is trained: asked of every learner, and the same for all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from contract.manifest import Written
from trainer.workers.learner import Training

if TYPE_CHECKING:
    from trainer.checkpoint.openrlhf import Position
    from trainer.checkpoint.replication import Receipt, Targets
    from trainer.workers.protocols import Source


class Keeper:
    """A Learner, but for its updates."""

    _training: Training

    def snapshot(self, step: int, needed: Sequence[int] = ()) -> int:
        with self._training.awake():
            return self._training.snapshot(step, needed)

    def save(self, step: int, directory: Path) -> Written:
        return self._training.save(step, directory)

    def hand_over(self, to: Targets) -> Receipt:
        return self._training.hand_over(to)

    def restore(self, source: Source) -> Position | None:
        with self._training.awake():
            return self._training.restore(source)

    def restored_rate(self) -> float | None:
        return self._training.restored_rate
