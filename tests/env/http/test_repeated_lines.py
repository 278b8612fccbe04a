"""What a flood of requests leaves on the console of its server."""

from __future__ import annotations

import logging

from env.http.connections import OncePerMinute


def record(message: str, at: float) -> logging.LogRecord:
    made = logging.LogRecord("control", logging.WARNING, "", 0, message, (), None)
    made.created = at
    return made


def test_a_message_that_comes_every_second_passes_once_a_minute_with_its_number() -> None:
    passes = OncePerMinute()
    repeated = [record("too many open files", 1000.0 + second) for second in range(125)]
    other = record("another", 1001.0)
    shown = [one for one in (*repeated[:2], other, *repeated[2:]) if passes.filter(one)]
    again = "too many open files (59 times more since)"
    assert [one.getMessage() for one in shown] == ["too many open files", "another", again, again]
