"""Starting, ending and finding processes, with real ones."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from contract.files.child_variables import NODE_MARK
from entrypoint.processes import process
from entrypoint.processes.process import Process, StartError


def start(tmp_path: Path, code: str, **env: str) -> Process:
    argv = [sys.executable, "-u", "-c", code]
    return Process("it", argv, env=dict(os.environ) | env, log_to=tmp_path / "logs" / "it.log")


def wait_for_line(child: Process, line: str) -> None:
    deadline = time.monotonic() + 10
    while line not in child.tail():
        assert time.monotonic() < deadline, child.tail()
        time.sleep(0.02)


def test_output_of_both_kinds_is_appended_to_the_log(tmp_path: Path) -> None:
    for _ in range(2):
        start(tmp_path, "import sys; print('out'); print('err', file=sys.stderr)").wait(10)
    text = (tmp_path / "logs" / "it.log").read_text()
    assert (text.count("out"), text.count("err")) == (2, 2)


def test_the_tail_of_a_log_is_not_that_of_an_earlier_process(tmp_path: Path) -> None:
    start(tmp_path, "print('Ray runtime started')").wait(10)
    again = start(tmp_path, "print('starting')")
    again.wait(10)
    assert again.tail() == "starting"


def test_an_exit_by_signal_reads_as_a_shell_would_say_it(tmp_path: Path) -> None:
    child = start(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert child.wait(10) == 128 + signal.SIGKILL


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no-such-program"):
        Process("it", ["no-such-program"], env={}, log_to=tmp_path / "log")


def test_the_end_of_a_process_is_told(tmp_path: Path) -> None:
    told = threading.Event()
    codes: list[int] = []

    def ended(code: int) -> None:
        codes.append(code)
        told.set()

    child = start(tmp_path, "raise SystemExit(7)")
    child.on_exit(ended)
    assert told.wait(10)
    assert codes == [7]


def test_stopping_is_gentle_first(tmp_path: Path) -> None:
    child = start(
        tmp_path,
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(0)))\n"
        "print('up')\ntime.sleep(60)",
    )
    wait_for_line(child, "up")
    child.stop(grace=10)
    assert child.exit_code == 0
    assert "bye" in child.tail()


def test_stopping_ends_a_stubborn_process_and_its_grandchildren(tmp_path: Path) -> None:
    child = start(
        tmp_path,
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "grand = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True)\n"
        "print(f'grand {grand.pid}')\ntime.sleep(60)",
    )
    wait_for_line(child, "grand")
    grandchild = int(child.tail().split()[1])
    child.stop(grace=0.3)
    assert child.exit_code == 128 + signal.SIGKILL
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == "zombie"


def test_a_node_finds_its_own_processes_and_nobody_elses(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('up')\ntime.sleep(60)"
    )
    mine = start(tmp_path, code, **{NODE_MARK: f"mine-{os.getpid()}"})
    other = start(tmp_path, code, **{NODE_MARK: f"other-{os.getpid()}"})
    try:
        wait_for_line(mine, "up")
        deadline = time.monotonic() + 10  # a process that was just started may show no environment
        while len(found := process.find_marked(f"mine-{os.getpid()}")) < 2:
            assert time.monotonic() < deadline
        assert len(found) == 2
        assert mine.pid in {one.pid for one in found}
        assert process.end(found, grace=5) == 2
        assert process.find_marked(f"mine-{os.getpid()}") == []
        assert other.running
    finally:
        mine.stop()
        other.stop()


def test_ctrl_c_at_the_terminal_does_not_reach_the_children(tmp_path: Path) -> None:
    child = start(tmp_path, "import time; print('up'); time.sleep(60)")
    try:
        wait_for_line(child, "up")
        assert os.getpgid(child.pid) != os.getpgid(0)
    finally:
        child.stop()


def test_no_process_is_started_anywhere_else() -> None:
    """But those of a demo: one reads a pipe until it ends, one has its errors on the console."""
    root = Path(process.__file__).parents[1]
    starters = [
        path.name
        for path in sorted(root.rglob("*.py"))
        if "subprocess.Popen(" in path.read_text() or "os.fork" in path.read_text()
    ]
    assert starters == ["demo_child.py", "demo_nodes.py", "process.py"]
