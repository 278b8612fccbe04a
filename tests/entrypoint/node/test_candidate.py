"""A worker that may take the place of a lost head does so once, and only if it can lead."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.files.child_variables import NODE_OWNER
from contract.files.fd_store import FdStore
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.net.port_block import PortBlock
from entrypoint.node import candidate, heritage
from entrypoint.node.candidate import Candidate, LeaseWatch, TookOverError
from entrypoint.node.heritage import Heritage
from entrypoint.processes import process
from entrypoint.processes.inbox import Inbox
from entrypoint.run import candidacy, lease
from entrypoint.run import token as run_token
from tests.support.hurried import hurried
from tests.support.waiting import eventually

SILENCE = 0.5


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(lease, "SILENCE_SECONDS", SILENCE)
    monkeypatch.setattr(candidate, "LOOK_SECONDS", 0.05)
    with PortBlock(4) as first:
        yield first


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    """Of a head on another machine."""
    run = RunFiles(tmp_path)
    run.leases.mkdir()
    beat(run, 1)
    return run


def beat(run: RunFiles, count: int) -> None:
    row = {"incarnation": "x", "host": "elsewhere", "address": "10.0.0.1", "beat": count}
    (run.leases / "1").write_text(json.dumps(row))


def standing(run: RunFiles, ports: int, patience: str = "auto", **own: str) -> Candidate:
    """A worker that the head has accepted, and that does not hear it any more.

    `patience`: what the head's ROLLCALL_HEAD_FAILOVER says.
    """
    of_both = {
        "ROLLCALL_RUN_DIR": str(run.root),
        "ROLLCALL_RAY_PORT": str(ports),
        "ROLLCALL_DASHBOARD_PORT": str(ports + 1),
        "ROLLCALL_CONTROL_PORT": str(ports + 2),
    }
    on_head = {"ROLLCALL_RECIPE": "command", "ROLLCALL_HEAD_FAILOVER": patience}
    head = hurried({**of_both, **on_head}, ("true",))
    of_worker = {"RAY_WORKER": "1", "ROLLCALL_HEAD_ADDRESS": "10.0.0.1"}
    made = Candidate(read_settings({**of_both, **of_worker, **own}), Inbox())
    made.accepted(Heritage.read(heritage.told(head, Head(2, 2, "a test"), "10.0.0.1")), "127.0.0.1")
    made.watch.begin()
    return made


def vacant(found: Candidate) -> None:
    eventually(lambda: found.watch.vacancy() is not None)


def test_it_leads_once_the_head_is_silent_and_not_before(run: RunFiles, ports: int) -> None:
    found = standing(run, ports)
    until = time.monotonic() + 3 * SILENCE
    while time.monotonic() < until:
        beat(run, int(time.monotonic() * 1000))
        found.stand()
        time.sleep(0.05)
    vacant(found)
    with pytest.raises(TookOverError) as taken:
        found.stand()
    with taken.value.lease as own:
        assert own.claim.epoch == 2
        assert lease.moved_to(run.leases) == "127.0.0.1"
    assert taken.value.settings.job == ("true",)
    assert lease.moved_to(run.leases) == "", "a head that has ended is nowhere"


def test_a_head_has_the_time_to_come_back_that_it_asks_for(run: RunFiles, ports: int) -> None:
    found = standing(run, ports, patience=str(4 * SILENCE))
    vacant(found)
    found.stand()
    assert found.watch.vacancy() is not None, "silent, and not yet lost"

    def stands() -> bool:
        try:
            found.stand()
        except TookOverError as taken:
            with taken.lease:
                return True
        return False

    eventually(stands)


def test_a_worker_leads_with_the_token_that_the_run_has_now(run: RunFiles, ports: int) -> None:
    found = standing(run, ports, ROLLCALL_TOKEN="of-the-start-of-all")
    vacant(found)
    with pytest.raises(TookOverError) as taken:
        found.stand()
    with taken.value.lease, FdStore(run.root / "socket") as memory:
        made = taken.value.succession(memory, "of-rotate-token-since")
    assert run_token.for_head(made.settings) == "of-rotate-token-since"


def test_of_two_the_other_goes_on_as_a_worker(run: RunFiles, ports: int) -> None:
    first, second = standing(run, ports), standing(run, ports)
    vacant(first)
    vacant(second)
    with pytest.raises(TookOverError) as taken:
        first.stand()
    with taken.value.lease:
        second.stand()
        eventually(lambda: second.watch.vacancy() is None)
    second.watch.end()


def test_a_head_that_answers_is_not_lost_though_it_writes_no_heartbeat(
    run: RunFiles, ports: int
) -> None:
    found = standing(run, ports)
    until = time.monotonic() + 3 * SILENCE
    while time.monotonic() < until:
        found.watch.heard()
        found.stand()
        time.sleep(0.05)
    found.watch.end()


def test_a_watch_tells_once_that_a_later_head_has_a_lease(run: RunFiles, ports: int) -> None:
    told: list[str] = []
    watch = LeaseWatch(run.leases)
    watch.begin(lambda: told.append("later"))
    for count in range(2, 6):  # the same holder's heartbeat
        beat(run, count)
        time.sleep(0.06)
    assert told == []
    (run.leases / "2").write_text('{"host": "elsewhere", "beat": 0}')
    eventually(lambda: told == ["later"])
    (run.leases / "2").write_text('{"host": "elsewhere", "beat": 1}')
    time.sleep(0.2)
    watch.end()
    assert told == ["later"]


def test_a_run_that_is_over_is_led_by_nobody(run: RunFiles, ports: int) -> None:
    (run.leases / "1").write_text('{"host": "elsewhere", "over": true}')
    found = standing(run, ports)
    time.sleep(3 * SILENCE)
    found.stand()
    found.watch.end()


def test_a_worker_that_refuses_for_itself_waits(run: RunFiles, ports: int) -> None:
    found = standing(run, ports, ROLLCALL_HEAD_FAILOVER="off")
    vacant(found)
    found.stand()
    refused = ((found.settings.node_name, "ROLLCALL_HEAD_FAILOVER is off there"),)
    eventually(lambda: candidacy.read(run.leases).refused == refused)
    found.watch.end()
    assert lease.look(run.leases)[0] == 1


def test_a_worker_without_the_heads_ports_leaves_the_lease_to_another_and_says_why_once(
    run: RunFiles, ports: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = standing(run, ports)
    vacant(found)
    with socket.create_server(("", ports + 2)), caplog.at_level(logging.WARNING):
        found.stand()
        found.stand()
        eventually(lambda: f"port {ports + 2}" in str(candidacy.read(run.leases).refused))
    assert caplog.text.count(f"port {ports + 2} cannot be listened on") == 1
    assert lease.look(run.leases)[0] == 1
    with pytest.raises(TookOverError) as taken:  # the port is free again
        found.stand()
    taken.value.lease.release()


HELD = "import socket, time; held = socket.create_server(('', int(__import__('sys').argv[1])))"


@pytest.mark.parametrize("is_over", [True, False])
def test_what_a_lost_head_of_this_machine_has_left_on_a_port_is_ended_once_the_head_is_over(
    run: RunFiles, ports: int, is_over: bool
) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        owner = "1:1" if is_over else process.identity(other.pid)
        mark = f"{NODE_OWNER}={owner}"
        row = {"host": "here", "boot_id": lease.boot_id(), "mark": mark}
        (run.leases / "1").write_text(json.dumps(row))
        words = [sys.executable, "-c", f"{HELD}; time.sleep(60)", str(ports)]
        with subprocess.Popen(words, env={NODE_OWNER: str(owner)}) as left:
            eventually(lambda: _is_taken(ports))
            found = standing(run, ports)
            vacant(found)
            if is_over:
                with pytest.raises(TookOverError) as taken:
                    found.stand()
                taken.value.lease.release()
            else:  # the head is frozen
                found.stand()
                found.watch.end()
            assert (left.poll() is not None) == is_over
            left.kill()
        other.kill()


def _is_taken(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0
