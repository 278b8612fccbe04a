"""Whether an engine that is waited for still lives: a stopped process does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainer.cluster.worker_group import LOOK_SECONDS, Pending


class Pulse:
    """Asks it now and then, for as long as it is waited for."""

    def __init__(
        self, ask: Callable[[], Pending[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._since = clock()
        self._question: Pending[None] | None = None

    def silence(self) -> float:
        """Seconds since the question that it has not answered; 0 where there is none."""
        now = self._clock()
        if self._question is not None and not self._question.ready(0):
            return now - self._since
        if now - self._since > LOOK_SECONDS:
            self._since, self._question = now, self._ask()
        return 0.0
