"""How long a client waits, also while no head answers."""

from __future__ import annotations

import time

from contract.options import ConfigError, Fault
from entrypoint.cluster.client import ANSWER_TIMEOUT_SECONDS, CONNECT_TIMEOUT_SECONDS

POLL_SECONDS = 0.5
SHORTEST_REQUEST_SECONDS = 1.0


class Limit:
    """What is waited for, and until when."""

    def __init__(self, what: str, timeout: float | None) -> None:
        """`timeout`: seconds; None: for ever. Raises ConfigError."""
        self._what = what
        self._seconds = _seconds(timeout)
        self._deadline = time.monotonic() + self._seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def of(self, seconds: float) -> float:
        """Return these seconds, or those that are left if they are fewer."""
        return max(0.0, min(seconds, self._deadline - time.monotonic()))

    def of_request(self) -> tuple[float, float, float, float]:
        """Return how long a request may connect, read, write and wait, as httpx has it.

        A head that is there can answer even if nothing is left.
        """
        answer = max(SHORTEST_REQUEST_SECONDS, self.of(ANSWER_TIMEOUT_SECONDS))
        connect = max(SHORTEST_REQUEST_SECONDS, self.of(CONNECT_TIMEOUT_SECONDS))
        return connect, answer, answer, answer

    def pause(self, now: str) -> float:
        """Return for how long to sleep before the next look.

        Raises TimeoutError, which tells what goes on `now`.
        """
        if self.is_over:
            raise self.too_late(now)
        return self.of(POLL_SECONDS)

    def too_late(self, why: str) -> TimeoutError:
        return TimeoutError(f"{self._what} has not ended within {self._seconds:g} s: {why}")


def _seconds(timeout: object) -> float:
    """Return a limit of time. Raises ConfigError."""
    if timeout is None:
        return float("inf")
    if isinstance(timeout, int | float):
        return float(timeout)
    raise ConfigError([Fault("timeout", str(timeout), "is no number", "Give seconds, or None")])
