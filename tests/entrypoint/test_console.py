"""What the console passes on."""

from __future__ import annotations

import logging

import pytest

from entrypoint import console
from entrypoint.console import OncePerMinute


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


def test_a_check_that_did_not_pass_has_its_level_and_says_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        for line in ("WARN host.nofile: 100 %s", "FAIL host.shm: none", "preflight: 1 passed"):
            console.say_check(line)
    assert [made.levelname for made in caplog.records] == ["WARNING", "ERROR", "INFO"]
    text = console._Line("gn1", frozenset())
    assert text.format(caplog.records[0]).endswith(" gn1 WARN host.nofile: 100 %s")
