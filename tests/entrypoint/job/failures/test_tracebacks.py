"""Where tracebacks begin and end among the lines that a program prints."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from entrypoint.job.failures.tracebacks import HEADER, Line, Part, Tracebacks, last_traceback
from tests.support.repository import DATA

PRINTED = tomllib.loads((DATA / "tracebacks.toml").read_text())["printed"]
CHAIN = """
try:
    1 / 0
except ZeroDivisionError as error:
    raise ValueError("the batch is empty") from error
"""


def read(text: str) -> list[Line]:
    reader = Tracebacks()
    return [reader.read(line) for line in text.splitlines()]


def printed(program: str) -> str:
    return next(str(one["log"]) for one in PRINTED if one["program"].startswith(program))


def test_the_last_traceback_begins_with_the_first_of_its_chain(tmp_path: Path) -> None:
    (tmp_path / "chain.py").write_text(CHAIN)
    command = [sys.executable, "chain.py"]
    said = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=60)
    once = said.stderr.splitlines()
    assert last_traceback(once) == 0
    assert last_traceback(["begins", *once, "and again", *once]) == len(once) + 2
    assert last_traceback(["begins", "step 1 loss 0.2"]) is None


@pytest.mark.parametrize("program", ["asyncio.TaskGroup", "typer"])
def test_a_group_and_a_box_are_one_traceback(program: str) -> None:
    lines = printed(program).splitlines()
    assert last_traceback(["step 1", *lines]) == 1


def test_lines_of_other_programs_between_those_of_a_traceback_are_not_of_it() -> None:
    before = "ERROR 11-28 10:34:09 [core.py:708] "
    later = before.replace("10:34:09", "10:34:10")
    lines = [
        f"{before}{HEADER}:",
        "INFO: 10.0.0.1 - GET /health",
        f'{later}  File "/job/a.py", line 3, in f',
        "KeyError: of another thread",
        f"{later}ValueError: wrong",
    ]
    parts = [said.part for said in read("\n".join(lines))]
    assert parts == [Part.BEGIN, Part.NONE, Part.FRAMES, Part.NONE, Part.ERROR]
    assert read("\n".join(lines))[-1] == Line("ValueError: wrong", Part.ERROR, "/job/a.py:3")


def test_words_before_the_header_alone_are_no_margin() -> None:
    text = f"the reward failed: {HEADER}:\n  File \"/job/r.py\", line 2, in f\nKeyError: 'label'"
    assert read(text)[-1] == Line("KeyError: 'label'", Part.ERROR, "/job/r.py:2")


def test_each_exception_of_a_group_ends_with_its_error() -> None:
    errors = [said for said in read(printed("asyncio.TaskGroup")) if said.part is Part.ERROR]
    assert [said.text for said in errors] == [
        "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)",
        "ValueError: prompt 1 is empty",
        "ValueError: prompt 2 is empty",
    ]


def test_an_exception_without_frames_in_a_group_is_an_error() -> None:
    text = """  + Exception Group Traceback (most recent call last):
  |   File "/job/a.py", line 1, in <module>
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | KeyError: 'a'
    +------------------------------------
step 3 loss 0.2"""
    *_, error, _, after = read(text)
    assert (error.part, error.text) == (Part.ERROR, "KeyError: 'a'")
    assert (after.part, after.text) == (Part.NONE, "step 3 loss 0.2")
