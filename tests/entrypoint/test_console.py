"""What the console passes on."""

from __future__ import annotations

import logging

import pytest

from entrypoint import console


def test_a_check_that_did_not_pass_has_its_level_and_says_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        for line in ("WARN host.nofile: 100 %s", "FAIL host.shm: none", "preflight: 1 passed"):
            console.say_check(line)
    assert [made.levelname for made in caplog.records] == ["WARNING", "ERROR", "INFO"]
    text = console._Line("gn1", frozenset())
    assert text.format(caplog.records[0]).endswith(" gn1 WARN host.nofile: 100 %s")
