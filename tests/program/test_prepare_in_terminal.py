"""While `rollcall prepare` makes data and a model, a terminal shows for how long."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.screen import terminal

SLOW = """
import sys, time
from env.prepare import __main__ as prepare

def make(out):
    time.sleep(3)
    (out / "train.jsonl").write_text("{}")

prepare._plan_arithmetic = lambda arguments: ({"task": "arithmetic"}, make)
sys.exit(prepare.main(["arithmetic", "--out", sys.argv[1]]))
"""


def test_a_terminal_has_a_row_with_the_seconds_that_goes_at_the_end(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SLOW, str(tmp_path / "out")]
    with terminal(words, dict(os.environ), 200) as screen:
        screen.shows("making arithmetic: 0:00:01")
        made, *files, then = screen.shows("next: rollcall init")
        assert made == f"{tmp_path / 'out'}: made"
        assert f"  {tmp_path / 'out' / 'train.jsonl'}: prompts to train on" in files
        assert f"--data {tmp_path / 'out' / 'train.jsonl'}" in then
        assert screen.program.wait(30) == 0
