"""While the demo makes its data and its model, it says so: in a terminal, and in a log."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from entrypoint.commands import demo
from tests.support.screen import terminal

SLEEPS = """
import logging, sys
from entrypoint.commands import demo

demo.BUSY_SECONDS = 0.3
logging.basicConfig(level=logging.INFO)
logging.info("it begins")
demo.run_module("warm-up", "timeit", "-n1", "-r1", "import time; time.sleep(float(%r))")
logging.info("it is made")
sys.stdin.readline()
"""


def test_a_terminal_has_a_row_with_the_seconds_that_goes_at_the_end() -> None:
    words = [sys.executable, "-c", SLEEPS % "3"]
    with terminal(words, dict(os.environ)) as screen:
        screen.shows("warm-up 0:00:01")
        rows = screen.shows("it is made")
        assert not any("warm-up" in row for row in rows)
        os.write(screen._descriptor, b"\n")


def test_a_log_has_a_line_now_and_then() -> None:
    words = [sys.executable, "-c", SLEEPS % "1.5"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0
    assert "warm-up: 0.3 s so far" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_program_that_fails_ends_the_demo() -> None:
    with pytest.raises(subprocess.CalledProcessError, match="status 1"):
        demo.run_module("warm-up", "timeit", "1 +")
