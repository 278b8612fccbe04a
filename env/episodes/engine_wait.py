"""How long an episode has waited for the engine, which does not count against its time limit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class EngineWait:
    """The time in which at least one call of the engine is under way: calls may overlap."""

    def __init__(self) -> None:
        self._calls = 0
        """Calls under way."""
        self._since = 0.0
        """When the first of them began; seconds of the monotonic clock."""
        self._over = 0.0
        """Seconds before that."""

    @contextmanager
    def call(self) -> Iterator[None]:
        """The block is a call of the engine."""
        if not self._calls:
            self._since = time.monotonic()
        self._calls += 1
        try:
            yield
        finally:
            over = self.seconds()
            self._calls -= 1
            if not self._calls:
                self._over = over

    def seconds(self) -> float:
        return self._over + (time.monotonic() - self._since if self._calls else 0.0)
