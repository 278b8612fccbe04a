"""A signal to a node that still waits: it ends at once, with 143."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.terminal import in_terminal
from tests.support.waiting_worker import environment, worker_that_waits

SIGNALS = 5000


def test_a_worker_that_waits_for_the_head_ends_within_5_seconds(tmp_path: Path) -> None:
    with worker_that_waits(tmp_path) as worker:
        began = time.monotonic()
        worker.terminate()
        assert worker.wait(10) == 143
        assert time.monotonic() - began < 5


WAITS_AGAIN = """
from entrypoint.net import wait
from entrypoint.processes.inbox import Inbox, StopAsked

def no_head():
    raise wait.NotYetError("no head")

inbox = Inbox()
inbox.listen_to_signals()
print("waits", flush=True)
while True:
    try:
        wait.until("the head", no_head, timeout=600, stop=inbox.stop, longest_pause=0.0001)
    except wait.InterruptedWaitError:
        inbox.stop.clear()
    while message := inbox.take(timeout=0):
        if message != StopAsked("SIGUSR1"):
            raise SystemExit(0 if message == StopAsked("SIGTERM") else 1)
"""


def test_a_wait_that_thousands_of_signals_interrupt_goes_on_and_hears_the_last() -> None:
    """Some reach it within a lock, and some while it takes note of those before."""
    argv = [sys.executable, "-c", WAITS_AGAIN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "waits\n"
        for number in range(SIGNALS):
            node.send_signal(signal.SIGUSR1)
            if number % 10 == 0:
                time.sleep(0.0002)
        node.terminate()
        try:
            assert node.wait(10) == 0
        finally:
            node.kill()


WITHIN_THE_LOCK = """
import os, signal
from entrypoint.processes.inbox import Inbox, StopAsked

inbox = Inbox()
inbox.listen_to_signals()
with inbox.stop._cond:  # as wait() and set() of the event hold it
    os.kill(os.getpid(), signal.SIGTERM)
    sum(range(10_000))  # the handler runs here, in this thread
raise SystemExit(inbox.take(timeout=10) != StopAsked("SIGTERM"))
"""


def test_a_signal_that_arrives_within_the_lock_of_the_wait_is_heard() -> None:
    done = subprocess.run([sys.executable, "-c", WITHIN_THE_LOCK], timeout=30, check=False)
    assert done.returncode == 0


def wait_for(words: bytes, terminal: int) -> None:
    said = b""
    while words not in said:
        said += os.read(terminal, 1000)


def test_a_node_whose_terminal_closes_ends_with_143(tmp_path: Path) -> None:
    with in_terminal([sys.executable, "-m", "entrypoint"], environment(tmp_path)) as (
        node,
        terminal,
    ):
        wait_for(b"waiting for the head's name", terminal)
        os.close(terminal)
        assert node.wait(10) == 143


SPEAKS_ON = """
import logging, os, signal, sys
from entrypoint import console
from entrypoint.config.read import read_settings
from contract.progress import Progress

signal.signal(signal.SIGHUP, signal.SIG_IGN)
console.set_up(read_settings(os.environ))
line = console.ProgressLine()
line.show(Progress(step=1))
try:
    sys.stdin.read()
except OSError:
    logging.info("the terminal is closed")
line.show(Progress(step=2))
line.end()
logging.info("the job is asked to save")
"""


def test_what_is_said_to_a_closed_terminal_ends_nothing(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", SPEAKS_ON]
    with in_terminal(argv, environment(tmp_path)) as (node, terminal):
        wait_for(b"step 1", terminal)
        os.close(terminal)
        assert node.wait(10) == 0


def test_a_wait_under_nohup_outlives_its_terminal() -> None:
    argv = ["nohup", sys.executable, "-c", WAITS_AGAIN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "waits\n"
        node.send_signal(signal.SIGHUP)
        node.terminate()
        assert node.wait(10) == 0


FULL = """
import logging, os, sys
from entrypoint import console
from entrypoint.config.read import read_settings

console.set_up(read_settings(os.environ))
logging.info("before")
room = os.dup(1)
full = os.open("/dev/full", os.O_WRONLY)
os.dup2(full, 1)
logging.info("lost")
os.dup2(room, 1)
logging.info("after")
"""


def test_a_console_on_a_disk_that_was_full_goes_on(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", FULL]
    ended = subprocess.run(
        argv, env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in ended.stdout.splitlines() if "lost" not in line] == [
        "before",
        "after",
    ]
    assert "Traceback" not in ended.stderr
