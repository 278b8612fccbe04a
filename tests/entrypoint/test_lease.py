"""One living head on a run directory, whatever happened to the ones before."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from entrypoint import lease
from entrypoint.lease import HeldError, Lease, holder

HOLD = """
import sys, time
from pathlib import Path
from entrypoint.lease import Lease
Lease(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".lease"


def test_a_second_head_is_refused_while_the_first_lives(path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(HeldError, match="ROLLCALL_RUN_DIR"):
            Lease(path).acquire()
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()


def test_a_head_killed_on_this_machine_is_succeeded_at_once(path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with Lease(path) as successor:
        assert json.loads(path.read_text())["incarnation"] == successor.incarnation


def write_as_another_machine(path: Path, beat: int) -> None:
    row = {"incarnation": "x", "host": "elsewhere", "boot_id": "another", "beat": beat}
    path.write_text(json.dumps(row))


def test_a_beating_head_on_another_machine_is_respected_without_its_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SILENCE_SECONDS", 5.0)
    write_as_another_machine(path, 1)
    threading.Timer(0.7, write_as_another_machine, (path, 2)).start()
    with pytest.raises(HeldError, match="elsewhere"):
        Lease(path).acquire()


def test_a_silent_head_on_another_machine_is_succeeded_after_the_watch(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SILENCE_SECONDS", 1.0)
    write_as_another_machine(path, 1)
    with Lease(path):
        assert json.loads(path.read_text())["host"] != "elsewhere"


def test_a_lease_given_back_leaves_nothing_to_wait_for(path: Path) -> None:
    Lease(path).acquire().release()
    assert path.read_text() == ""
    with Lease(path):
        pass


def test_a_held_lease_beats(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.05)
    with Lease(path):
        deadline = time.monotonic() + 5
        while json.loads(path.read_text() or '{"beat": 0}')["beat"] < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_torn_lease_file_is_no_holder(path: Path) -> None:
    path.write_text('{"incarnat')
    with Lease(path):
        pass


def test_who_reads_the_lease_knows_the_heads_incarnation(tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    assert holder(path) == ""
    with Lease(path) as lease:
        assert holder(path) == lease.incarnation
    assert holder(path) == ""
    path.write_text("torn")
    assert holder(path) == ""
