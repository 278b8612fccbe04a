"""One living head on a run directory, whatever happened to the ones before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract import lease as contract_lease
from contract.journal import EventSource, append_event, read_events
from contract.manifest import checkpoint_path, fault_of, write_manifest
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.run import lease
from entrypoint.run.lease import HeldError, Lease
from tests.support.writing_driver import DRIVE

HOLD = """
import sys, time
from pathlib import Path
from entrypoint.run.lease import Lease
Lease(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def holder(leases: Path) -> str:
    """The incarnation of the head that has the newest lease; "" where there is none."""
    newest = contract_lease.newest(leases)
    return str(contract_lease.read(newest).get("incarnation", "")) if newest else ""


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return RunFiles(tmp_path).leases


@pytest.fixture
def held(leases: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A living holder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, leases], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_head_is_refused_while_the_first_lives(
    leases: Path, held: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(HeldError, match="ROLLCALL_RUN_DIR"):
        Lease(leases).acquire()
    assert [path.name for path in leases.iterdir()] == ["1"]


def test_a_head_killed_on_this_machine_is_succeeded_at_once(
    leases: Path, held: subprocess.Popen[bytes]
) -> None:
    os.kill(held.pid, signal.SIGKILL)
    held.wait()
    began = time.monotonic()
    with Lease(leases) as successor:
        assert time.monotonic() - began < lease.SILENCE_SECONDS / 2
        assert holder(leases) == successor.incarnation
        assert successor.claim.epoch == 2


def test_a_head_asks_before_it_writes_whether_another_lives(
    leases: Path, held: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(HeldError, match="ROLLCALL_RUN_DIR"):
        Lease(leases).refuse_living()
    os.kill(held.pid, signal.SIGSTOP)
    Lease(leases).refuse_living()
    os.kill(held.pid, signal.SIGKILL)
    held.wait()
    Lease(leases).refuse_living()
    Lease(leases / "none").refuse_living()
    assert [path.name for path in leases.iterdir()] == ["1"]


@pytest.mark.usefixtures("impatient")
def test_a_frozen_head_is_succeeded_though_it_keeps_its_lock(
    leases: Path, held: subprocess.Popen[bytes]
) -> None:
    os.kill(held.pid, signal.SIGSTOP)
    with Lease(leases) as successor:
        assert successor.claim.epoch == 2


def write_as_another_machine(leases: Path, beat: int) -> None:
    leases.mkdir(exist_ok=True)
    row = {"incarnation": "x", "host": "elsewhere", "boot_id": "another", "beat": beat}
    (leases / "1").write_text(json.dumps(row))


def test_a_beating_head_on_another_machine_is_respected_without_its_lock(leases: Path) -> None:
    write_as_another_machine(leases, 1)
    threading.Timer(0.7, write_as_another_machine, (leases, 2)).start()
    with pytest.raises(HeldError, match="elsewhere"):
        Lease(leases).acquire()


@pytest.mark.usefixtures("impatient")
def test_a_silent_head_on_another_machine_is_succeeded_after_the_watch(leases: Path) -> None:
    write_as_another_machine(leases, 1)
    with Lease(leases) as successor:
        assert successor.path == leases / "2"


def test_a_lease_given_back_leaves_nothing_to_wait_for(leases: Path) -> None:
    Lease(leases).acquire().release()
    assert holder(leases) == ""
    began = time.monotonic()
    with Lease(leases):
        assert time.monotonic() - began < lease.SILENCE_SECONDS / 2


def test_a_held_lease_beats(leases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.05)
    with Lease(leases) as own:
        deadline = time.monotonic() + 5
        while beats(own) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def beats(own: Lease) -> int:
    beat = contract_lease.read(own.path).get("beat", 0)
    assert isinstance(beat, int)
    return beat


@pytest.mark.usefixtures("impatient")
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lease_that_is_given_back_during_a_beat_is_over(
    leases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, beat = threading.Event(), Lease._beat

    def slowly(one: Lease, count: int) -> None:
        if count:
            begun.set()
            time.sleep(0.2)
        beat(one, count)

    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 1.0)
    monkeypatch.setattr(Lease, "_beat", slowly)
    given = Lease(leases, print).acquire()
    assert begun.wait(5)
    given.release()
    time.sleep(0.3)
    assert contract_lease.read(given.path).get("over")


@pytest.mark.usefixtures("impatient")
def test_a_torn_lease_is_no_holder_once_it_stays_so(
    leases: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leases.mkdir()
    (leases / "7").write_text('{"incarnat')
    with Lease(leases) as successor:
        assert successor.claim.epoch == 8
    assert "the head on an unknown machine that held this run is silent" in caplog.text


@pytest.mark.usefixtures("impatient")
def test_of_two_newcomers_one_gets_the_number(leases: Path) -> None:
    write_as_another_machine(leases, 1)
    first, second = Lease(leases), Lease(leases)
    second._take(2)
    with pytest.raises(HeldError):
        first._take(2)
    second.release()


def test_who_reads_the_lease_knows_the_heads_incarnation(leases: Path) -> None:
    assert holder(leases) == ""
    with Lease(leases) as own:
        assert holder(leases) == own.incarnation
    assert holder(leases) == ""


def test_a_head_that_was_superseded_is_told_with_both_numbers(
    leases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.05)
    told = threading.Event()
    sentences: list[str] = []

    def hear(sentence: str) -> None:
        sentences.append(sentence)
        told.set()

    with Lease(leases, hear):
        (leases / "2").write_text('{"host": "newer"}')
        assert told.wait(5)
    assert "taken over by a later head (lease 2, on newer)" in sentences[0]
    assert "of lease 1, writes nothing more" in sentences[0]


@pytest.mark.usefixtures("impatient")
def test_a_driver_that_wakes_up_under_a_superseded_lease_writes_nothing_and_ends_with_73(
    tmp_path: Path,
) -> None:
    run = RunFiles(tmp_path)
    old = Lease(run.leases).acquire()
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVE, run.root],
        env=os.environ | contract_lease.environment(old.claim),
    )
    while not run.progress.exists():
        time.sleep(0.02)
    os.kill(driver.pid, signal.SIGSTOP)
    old._released.set()  # its host is frozen with it
    with Lease(run.leases) as new:
        append_event(run.journal, "start", "another head", source=EventSource(claim=new.claim))
        journal, progress = run.journal.read_bytes(), run.progress.read_bytes()
        os.kill(driver.pid, signal.SIGCONT)
        assert driver.wait(10) == 73
        # What had passed its look at the leases when it froze may still be written: one line, void.
        late = run.journal.read_bytes().removeprefix(journal)
        assert len(late.splitlines()) <= 1
        assert [event["kind"] for event in read_events(run.journal)][-1] == "start"
        assert not late or run.progress.read_bytes() == progress


def test_no_manifest_is_written_under_a_superseded_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFiles(tmp_path)
    directory = checkpoint_path(run.checkpoints, 3)
    directory.mkdir(parents=True)
    (directory / "policy.pt").write_bytes(b"weights")
    with Lease(run.leases) as own:
        monkeypatch.setenv(contract_lease.VARIABLE, str(own.path))
        (run.leases / "2").touch()
        with pytest.raises(contract_lease.SupersededError):
            write_manifest(directory, 3)
        progress = Progress(
            step=3, total_steps=9, samples=0, attempt=1, reward=0.0, reward_first=0.0
        )
        with pytest.raises(contract_lease.SupersededError):
            progress.write(run.progress)
    assert fault_of(directory) == "no manifest: it was never finished"
    assert not run.progress.exists()


def test_nothing_is_written_where_other_storage_has_come_into_the_run_directorys_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_lease, "RESTORE_SECONDS", 0.2)
    run = RunFiles(tmp_path / "run")
    run.root.mkdir()
    with Lease(run.leases) as own:
        run.root.rename(tmp_path / "elsewhere")
        run.root.mkdir()
        with pytest.raises(OSError, match="Stale file handle"):
            append_event(run.journal, "step", "1", source=EventSource(claim=own.claim))
        assert list(run.root.iterdir()) == []


def test_a_line_of_an_older_head_after_one_of_a_newer_does_not_count(tmp_path: Path) -> None:
    run = RunFiles(tmp_path)
    with Lease(run.leases) as old:
        append_event(run.journal, "roll", "1", source=EventSource(claim=old.claim))
        line = run.journal.read_bytes()
    with Lease(run.leases) as new:
        append_event(run.journal, "start", "2", source=EventSource(claim=new.claim))
        with run.journal.open("ab") as file:
            file.write(line)
        append_event(run.journal, "roll", "3", source=EventSource(claim=new.claim))
    assert [event["sentence"] for event in read_events(run.journal)] == ["1", "2", "3"]
