"""What the demo says: while it makes data and model, and in JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from contract.journal import append_event
from contract.launch.programs import Program
from entrypoint import console
from entrypoint.commands import demo
from entrypoint.config.read import read_settings
from tests.support.screen import terminal
from tests.support.waiting import eventually

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
    with pytest.raises(subprocess.CalledProcessError, match="status 64"):
        demo.run_module("warm-up", Program.REWARD_SERVER, "--no-such-flag")


def test_the_demo_writes_json_if_it_is_asked_to(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "entrypoint", "demo", "--dir", str(tmp_path)]
    env = {**os.environ, "ROLLCALL_LOG": "json"}
    with subprocess.Popen(
        words,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background job ignores SIGINT, and so does what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as program:
        assert program.stdout is not None
        first = json.loads(program.stdout.readline())
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    assert (first["node"], first["level"]) == ("demo", "INFO")
    assert first["message"].startswith("the demo takes")


STOPPED = """
import signal, sys
from pathlib import Path
from entrypoint.commands import demo, demo_child

hangs = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "below = subprocess.Popen(['sleep', '60']); "
    "print(below.pid, file=open(sys.argv[1], 'w'), flush=True); time.sleep(60)"
)
signal.signal(signal.SIGINT, signal.default_int_handler)
demo_child.END_SECONDS = 0.5
demo.program = lambda *words: [sys.executable, "-c", hangs, sys.argv[-1]]
sys.exit(demo.main(["--dir", sys.argv[1], "--steps", "12"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_stopped_in_its_warm_up_leaves_nothing_and_says_how_it_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    noted = tmp_path / "pid"
    words = [sys.executable, "-c", STOPPED, str(tmp_path / "demo"), str(noted)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        eventually(lambda: noted.exists() and bool(noted.read_text()))
        below = psutil.Process(int(noted.read_text()))
        program.send_signal(number)
        said, _ = program.communicate(timeout=60)
    assert program.returncode == 128 + number
    assert "the demo is stopped. To go on: " in said
    assert f"demo --dir {tmp_path / 'demo'} --steps 12 --seed 0" in said
    assert not below.is_running() or below.status() == psutil.STATUS_ZOMBIE


KILLED = """
import os, sys, time
from pathlib import Path
from entrypoint.commands.demo_nodes import DemoNode, Keeper
from entrypoint.processes.process import Process, identity

with Keeper("rollcall demo --dir x") as keeper:
    code = "import time; time.sleep(60)"
    words, log = [sys.executable, "-c", code], Path(sys.argv[1] + ".log")
    node = Process("node", words, env=dict(os.environ), log_to=log)
    keeper.learn(DemoNode(node.pid, identity(node.pid), f"a@{sys.argv[1]}", sys.argv[1]))
    print(node.pid, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_nodes_of_a_demo_end_if_it_is_killed(tmp_path: Path, is_killed: bool) -> None:
    home = tmp_path / "ray"
    home.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        node = psutil.Process(int(program.stdout.readline()))
        if is_killed:
            program.kill()
        said, _ = program.communicate(None if is_killed else "\n", timeout=60)
    is_over = not node.is_running() or node.status() == psutil.STATUS_ZOMBIE
    assert is_over == is_killed
    assert home.exists() != is_killed
    told = "the demo was killed, and its nodes are stopped. To go on: rollcall demo --dir x"
    assert (told in said) == is_killed
    if not is_killed:
        node.kill()


def test_the_demos_end_is_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = demo.Layout(tmp_path, 21000)
    layout.run.root.mkdir()
    result = {"eval_before": 0.5, "eval_after": 0.9, "steps": 2, "attempts": 1}
    layout.run.result.write_text(json.dumps(result))
    rows = [{"step": step, "train/reward": 0.5, "eval/accuracy": 0.5} for step in (1, 2)]
    layout.run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    console.set_up(read_settings({"ROLLCALL_LOG": "json"}))
    demo._report(layout)
    said = json.loads(capsys.readouterr().out)
    assert said["message"].startswith("held-out accuracy 50 % before, 90 % after 2 steps")
    assert said["details"]["curve"] == str(layout.run.root / "learning_curve.png")
    assert said["details"]["steps"] == 2


def test_only_the_form_of_logs_goes_on_to_the_demos_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLCALL_LOG", "json")
    monkeypatch.setenv("ROLLCALL_RUN_DIR", "/other")
    given = [name for name in demo.inherited() if name.startswith("ROLLCALL_")]
    assert given == ["ROLLCALL_LOG"]


def test_the_command_that_the_demo_prints_works_as_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = demo.Layout(tmp_path / "a demo", 21000)
    layout.run.root.mkdir(parents=True)
    result = {"eval_before": 0.5, "eval_after": None, "steps": 1, "attempts": 1}
    layout.run.result.write_text(json.dumps(result))
    layout.run.metrics.write_text('{"step": 1, "train/reward": 0.5, "eval/accuracy": 0.5}\n')
    append_event(layout.run.journal, "outcome", "it has ended", {"outcome": "finished"})
    console.set_up(read_settings({}))
    demo._report(layout)
    (typed,) = (
        line.removeprefix("report").strip()
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("report ")
    )
    bare = {"PATH": "/usr/bin:/bin"}  # a shell without the environment of `make`
    done = subprocess.run(["sh", "-c", typed], env=bare, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("finished: it has ended")
