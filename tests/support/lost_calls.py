"""Outcomes of calls of workers that died or were stopped."""

from __future__ import annotations

import time
from typing import Any


class Dead:
    """The outcome of a call of an engine that died under it."""

    handle = None

    def __init__(self, error: Exception) -> None:
        self._error = error

    def ready(self, seconds: float) -> bool:
        return True

    def result(self) -> Any:
        raise self._error


class Never:
    """The outcome of a call that a stopped process was asked for."""

    handle = None

    def result(self) -> None:
        raise AssertionError("nobody waits for it without an end")

    def ready(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False
