"""Leases that somebody deletes, copies or damages while heads live, or after they did."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from contract import lease as contract_lease
from contract.journal import EventSource, append_event, read_events
from contract.run_dir import RunFiles
from entrypoint.run import lease
from entrypoint.run.lease import HeldError, Lease
from tests.support.writing_driver import DRIVE


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("left", ["", "1"])
def test_where_leases_are_lost_a_new_number_is_above_all_of_the_journal(
    tmp_path: Path, left: str
) -> None:
    run = RunFiles(tmp_path)
    for number in range(1, 4):
        with Lease(run.leases) as own:
            append_event(run.journal, "roll", str(number), source=EventSource(claim=own.claim))
    shutil.rmtree(run.leases)
    if left:
        run.leases.mkdir()
        (run.leases / left).write_text("{}")
    with Lease(run.leases) as later:
        append_event(run.journal, "roll", "later", source=EventSource(claim=later.claim))
        assert later.claim.epoch == 4
    assert [event["sentence"] for event in read_events(run.journal)] == ["1", "2", "3", "later"]


LIVE = """
import sys, time
from pathlib import Path
from entrypoint.run import lease
from contract.journal import EventSource, append_event
from contract.run_dir import RunFiles
lease.HEARTBEAT_SECONDS = 0.3
run = RunFiles(Path(sys.argv[1]))
own = lease.Lease(run.leases, lambda why: print("lost", flush=True)).acquire()
source = EventSource(claim=own.claim)
append_event(run.journal, "start", "a head", {"incarnation": own.incarnation}, source=source)
print(own.claim.holder, flush=True)
time.sleep(60)
"""


def test_a_living_head_writes_a_lost_lease_again_and_its_driver_does_not_notice(
    tmp_path: Path,
) -> None:
    run = RunFiles(tmp_path)
    Lease(run.leases).acquire().release()
    head = subprocess.Popen([sys.executable, "-c", LIVE, run.root], stdout=subprocess.PIPE)
    assert head.stdout is not None
    claim = contract_lease.Claim(run.leases / "2", head.stdout.readline().decode().strip())
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVE, run.root], env=os.environ | contract_lease.environment(claim)
    )
    try:
        for _ in range(2):
            wait_for_step_after(run, newest_step(run))
            shutil.rmtree(run.leases)
            with pytest.raises(HeldError, match="held by a living head"):
                Lease(run.leases).acquire()
            wait_for_step_after(run, newest_step(run))
        assert (driver.poll(), head.poll()) == (None, None)
        assert {event["epoch"] for event in read_events(run.journal)} == {2}
        (run.leases / "3").write_text('{"incarnation": "x", "host": "elsewhere"}')
        assert driver.wait(10) == 73
        assert head.stdout.readline() == b"lost\n"
    finally:
        for process in (driver, head):
            process.kill()
            process.wait()


def newest_step(run: RunFiles) -> int:
    return next(
        (
            e["details"]["step"]
            for e in reversed(list(read_events(run.journal)))
            if e["kind"] == "step"
        ),
        0,
    )


def wait_for_step_after(run: RunFiles, step: int) -> None:
    deadline = time.monotonic() + 30
    while newest_step(run) <= step:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_holders_of_one_number_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where all was lost, the journal too, and another machine began anew."""
    monkeypatch.setattr(contract_lease, "RESTORE_SECONDS", 0.2)
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.1)
    run, told = RunFiles(tmp_path), threading.Event()
    with Lease(run.leases, lambda _: told.set()) as own:
        own.path.unlink()
        own.path.write_text('{"incarnation": "another", "host": "elsewhere"}')
        with pytest.raises(contract_lease.SupersededError, match="lease 1, on elsewhere"):
            append_event(run.journal, "roll", "1", source=EventSource(claim=own.claim))
        assert told.wait(5)
    assert not run.journal.exists()


def test_a_damaged_byte_in_a_held_lease_is_mended_by_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.2)
    run = RunFiles(tmp_path)
    with Lease(run.leases) as own:
        damaged = own.path.read_text().replace(own.incarnation, "0" * 12)
        with own.path.open("r+") as file:
            file.write(damaged)
        append_event(run.journal, "roll", "1", source=EventSource(claim=own.claim))
    assert [event["sentence"] for event in read_events(run.journal)] == ["1"]


def test_a_lease_that_cannot_be_renewed_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.02)
    run = RunFiles(tmp_path / "run")
    run.root.mkdir()
    with Lease(run.leases):
        run.root.rename(tmp_path / "elsewhere")
        run.root.mkdir()
        time.sleep(0.5)
    assert [message for message in caplog.messages if "cannot be renewed" in message] == [
        f"the lease {run.leases / '1'} cannot be renewed: "
        f"[Errno 116] Stale file handle: '{run.leases / '1'}'"
    ]
    assert list(run.root.iterdir()) == []
