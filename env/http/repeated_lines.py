"""Keeps a flood of requests from filling the console of the server that it hits."""

from __future__ import annotations

import logging
from collections import Counter

REPEATED_SECONDS = 60.0
REPEATING = ("asyncio", "uvicorn.error")
"""Loggers of what anyone who reaches a server can make it say."""


class OncePerMinute(logging.Filter):
    """Passes a repeated message once a minute, with how often it has come since."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[tuple[str, ...], float] = {}
        self._held: Counter[tuple[str, ...]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = str(record.exc_info[0]) if record.exc_info else ""
        first_line = record.getMessage().partition("\n")[0]
        message = (record.name, first_line, kind)
        if record.created - self._shown.get(message, 0.0) < REPEATED_SECONDS:
            self._held[message] += 1
            return False
        self._shown = {
            known: at for known, at in self._shown.items() if record.created - at < REPEATED_SECONDS
        }
        held = self._held.pop(message, 0)
        self._held = Counter({known: n for known, n in self._held.items() if known in self._shown})
        if held:
            record.msg, record.args = f"{record.getMessage()} ({held} times more since)", ()
        self._shown[message] = record.created
        return True


ONCE_PER_MINUTE = OncePerMinute()


def say_once_per_minute() -> None:
    """Have the loggers of servers pass repeated messages once a minute, in this process."""
    for name in REPEATING:
        logging.getLogger(name).addFilter(ONCE_PER_MINUTE)
