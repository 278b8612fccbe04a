"""What a person sees in a terminal of 80 columns, and of 40: each state, and no line glued."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.journal import append_event
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster.server import HeadPhase
from tests.support.control import TOKEN, Head, head, node_info
from tests.support.screen import terminal
from tests.support.terminal import in_terminal, read_to_end
from tests.support.waiting import eventually

__all__ = ["head"]

ROLLCALL = [sys.executable, "-m", "entrypoint"]
TRAINS = """
import logging, os, sys
from contract.progress import Progress
from entrypoint import console
from entrypoint.config.read import read_settings

console.set_up(read_settings(os.environ))
line = console.ProgressLine()
for step in range(1, 31):
    line.show(Progress(step=step, total_steps=30, reward=step / 30, kl=0.0123, loss=1.25,
                       eval=0.5, tokens_per_second=12345.6, eta_seconds=90.0 * (30 - step)))
    if step % 10 == 0:
        logging.warning("Checkpoint of step %d written.", step)
sys.stdin.readline()
line.end()
logging.info("the job has finished")
sys.stdin.readline()
"""


ONE_STEP = """
import os, sys
from contract.progress import Progress
from entrypoint import console
from entrypoint.config.read import read_settings

console.set_up(read_settings(os.environ))
console.ProgressLine().show(Progress(step=3, total_steps=30))
sys.stdin.readline()
"""


STARTS = """
import logging, os, sys, time
from contract.progress import Progress
from entrypoint import console
from entrypoint.config.read import read_settings

console.set_up(read_settings(os.environ))
line = console.ProgressLine()
for tenths in range(0, 1300, 5):
    line.wait(1, tenths / 10)
if sys.stdout.isatty():
    time.sleep(2)
line.end()
logging.info("it begins")
line.wait(1, 130.0)
line.show(Progress(step=1, total_steps=30, eta_seconds=90.0))
line.end()
logging.info("it goes on")
sys.stdin.readline()
"""


def test_a_start_that_takes_long_is_a_row_that_the_first_step_replaces(tmp_path: Path) -> None:
    env = {**os.environ, "ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_NODE_NAME": "gn1"}
    with terminal([sys.executable, "-c", STARTS], env) as screen:
        rows = screen.shows("no step yet, 2 min 9 s so far")
        assert len(rows) == 1
        assert re.fullmatch(r"\S attempt 1 ━+ no step yet, 2 min 9 s so far", rows[0])
        begins, step, goes_on = screen.shows("it goes on")
        assert begins.endswith("gn1 it begins")
        assert re.fullmatch(r"\S step 1/30 \S+ 1 min 30 s left", step)
        assert goes_on.endswith("gn1 it goes on")
        os.write(screen._descriptor, b"\n")


def test_the_row_moves_between_steps_and_a_killed_program_leaves_the_cursor(tmp_path: Path) -> None:
    env = {**os.environ, "ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_NODE_NAME": "gn1"}
    with terminal([sys.executable, "-c", ONE_STEP], env) as screen:
        (first,) = screen.shows("step 3/30")
        eventually(lambda: screen.rows()[0][0] != first[0])
        assert screen.rows()[0][1:] == first[1:]
        screen.program.kill()
        screen.program.wait()
        screen.rows()
        assert not screen.hides_cursor


def test_a_terminal_that_cannot_go_back_gets_lines(tmp_path: Path) -> None:
    env = {**os.environ, "ROLLCALL_RUN_DIR": str(tmp_path), "TERM": "dumb"}
    with in_terminal([sys.executable, "-c", TRAINS], env) as (program, descriptor):
        os.write(descriptor, b"\n\n")
        said = read_to_end(descriptor)
        assert program.wait(60) == 0
    assert "step 30/30 · reward 1.000" in said
    assert "\x1b" not in said


def test_a_log_says_now_and_then_that_there_is_no_step_yet(tmp_path: Path) -> None:
    env = {**os.environ, "ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_NODE_NAME": "gn1"}
    words = [sys.executable, "-c", STARTS]
    done = subprocess.run(words, env=env, input="", capture_output=True, text=True, check=True)
    waits = [line.partition("yet, ")[2] for line in done.stdout.splitlines() if "no step" in line]
    assert waits == [f"{time} so far" for time in ("3 s", "10 s", "30 s", "1 min 0 s", "2 min 0 s")]


def of(head: Head) -> dict[str, str]:
    """The variables of one who asks from outside."""
    url = f"http://127.0.0.1:{head.port}"
    given = {"ROLLCALL_URL": url, "ROLLCALL_TOKEN": TOKEN, "ROLLCALL_RUN_DIR": "/none"}
    return {**os.environ, **given}


@pytest.mark.parametrize("columns", [80, 40])
def test_the_progress_is_one_row_below_the_log(tmp_path: Path, columns: int) -> None:
    env = {**os.environ, "ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_NODE_NAME": "gn1"}
    with terminal([sys.executable, "-c", TRAINS], env, columns) as screen:
        rows = screen.shows("step 30/30", "step 30 written" if columns == 80 else "written.")
        assert sum("step " in row and "/30" in row for row in rows) == 1
        assert re.fullmatch(r". step 30/30 ━+ reward 1\.000 .*", rows[-1])
        os.write(screen._descriptor, b"\n")
        rows = screen.shows("the job has finished" if columns == 80 else "finished")
        assert not any("/30" in row and "finished" in row for row in rows)
        os.write(screen._descriptor, b"\n")


def starts(head: Head) -> None:
    head.control.phase = HeadPhase.ROLL_CALL


def trains(head: Head) -> None:
    head.client().check_in(node_info("gpu-1"), joined=True)
    Progress(step=5, total_steps=10, attempt=1, reward=0.5, checkpoint=4).write(head.run.progress)
    head.control.phase = HeadPhase.TRAINING


def fails(head: Head) -> None:
    trains(head)
    registry = head.control._registry
    registry.check_in(node_info("gpu-2", python="3.9.0"), "")


def recovers(head: Head) -> None:
    trains(head)
    head.control.phase = HeadPhase.RECOVERING


STATES = {
    "empty": (starts, ["roll call; 0 of 2 workers", "2 workers not checked in yet"]),
    "training": (trains, ["training; 1 of 2 workers", "step 5/10 · reward 0.500"]),
    "failing": (fails, ["training; 1 of 2 workers", "gpu-2 was refused"]),
    "recovering": (recovers, ["recovering; 1 of 2 workers", "gpu-1 at 127.0.0.3"]),
}


@pytest.mark.parametrize("name", STATES)
def test_each_state_is_a_page_that_replaces_the_one_before(head: Head, name: str) -> None:
    arrange, parts = STATES[name]
    arrange(head)
    with terminal([*ROLLCALL, "status", "--watch"], of(head), 120) as screen:
        screen.shows(*parts)
        head.control.announce("finished", 0)
        rows = screen.shows("finished")
        assert sum("of 2 workers" in row for row in rows) == 1
        assert screen.program.wait(60) == 0


@pytest.mark.parametrize(("outcome", "code"), [("finished", 0), ("failed", 70), ("stopped", 143)])
def test_the_end_is_said_by_the_run_directory_alone(
    tmp_path: Path, outcome: str, code: int
) -> None:
    run = RunFiles(tmp_path)
    details = {"outcome": outcome, "exit_code": code}
    append_event(run.journal, "outcome", "this is how it ended", details)
    run.result.write_text(json.dumps({"exit_code": code, "steps": 5, "attempts": 1}))
    env = {**os.environ, "ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_TOKEN": TOKEN}
    env |= {"RAY_WORKER": "0", "ROLLCALL_HEAD_TIMEOUT": "1"}
    with terminal([*ROLLCALL, "status"], env) as screen:
        rows = screen.shows(f"({outcome}, exit code {code})", "5 steps, 1 attempt")
        assert "this is how it ended" in " ".join(rows)
        assert screen.program.wait(60) == 0


def test_a_head_that_is_dead_is_said_in_a_sentence(head: Head) -> None:
    head.control.__exit__()
    with terminal([*ROLLCALL, "status"], {**of(head), "ROLLCALL_HEAD_TIMEOUT": "1"}) as screen:
        assert screen.program.wait(60) == ExitCode.UNREACHABLE
        rows = screen.rows()
        assert str(head.port) in " ".join(rows)
        assert "Traceback" not in " ".join(rows)


@pytest.mark.parametrize("words", [["--help"], ["status", "--help"], ["report", "--help"]])
def test_help_fits_a_terminal(words: list[str]) -> None:
    with terminal([*ROLLCALL, *words], dict(os.environ)) as screen:
        assert screen.shows("rollcall")  # of a long text the end, which has the examples
        assert screen.program.wait(60) == 0
