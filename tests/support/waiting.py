"""Waits for what a test expects."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(check: Callable[[], bool], seconds: float = 30.0) -> None:
    """Fails if `check` is not true within this time."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
