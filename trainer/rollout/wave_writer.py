"""Writes replies in waves: all that wait, as one batch for each engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.dispatcher import WAIT_SECONDS
from trainer.rollout.engine_pool import EnginePool
from trainer.types import FinishedRollout, PartialRollout, Request


class WaveWriter:
    """A Dispatcher that writes all waiting replies as one batch for each engine.

    A batch depends on its contexts alone, so that its completions repeat to the bit.
    """

    def __init__(self, engines: EnginePool, sampling: SamplingSettings) -> None:
        self._engines = engines
        self._sampling = sampling
        self._waiting: list[PartialRollout] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    @property
    def stalled(self) -> bool:
        return bool(self._waiting) and not self._engines.present

    def give(self, groups: Sequence[Sequence[PartialRollout]]) -> None:
        self._waiting += [partial for group in groups for partial in group]

    def work(self, seconds: float) -> list[FinishedRollout]:
        """Write all waiting replies, however long that takes."""
        waiting, cuts = self._waiting, self._engines.shares
        if not waiting:
            return []
        requests = [Request(p.text, (p.seed,), p.context) for p in waiting]
        parts = [part for part in np.array_split(np.arange(len(requests)), cuts) if len(part)]
        written = self._engines.generate(
            [[requests[i] for i in part] for part in parts], self._sampling
        )
        self._waiting = []
        completions = [completion for share in written for completion in share]
        return [
            FinishedRollout(partial.key, completion)
            for partial, completion in zip(waiting, completions, strict=True)
        ]

    def finish(self) -> list[FinishedRollout]:
        return self.work(WAIT_SECONDS)

    def settle(self) -> list[FinishedRollout]:
        return []

    def partials(self) -> list[PartialRollout]:
        return []

    def close(self) -> None:
        pass
