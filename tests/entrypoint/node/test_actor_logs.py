"""What Ray's workers print, copied into the run directory, of files as Ray names them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from contract.files import ray_home
from entrypoint.node import actor_logs
from entrypoint.node.actor_logs import ActorLogs
from tests.support.waiting import eventually

SECRET = "9f86d081884c7d659a2feaa0c55ad015"


def worker_file(session: Path, pid: int, end: str = "out") -> Path:
    logs = session / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return logs / f"worker-{'ab' * 28}-01000000-{pid}.{end}"


def add(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def copied(path: Path) -> list[str]:
    """The lines without their times, which have a zone."""
    stamp = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4} ")
    lines = path.read_text().splitlines() if path.exists() else []
    assert all(stamp.match(line) for line in lines)
    return [stamp.sub("", line, count=1) for line in lines]


def test_new_lines_are_copied_once_with_the_name_of_the_actor(tmp_path: Path) -> None:
    session, copy = tmp_path / "session", tmp_path / "logs" / "actors-w.log"
    add(worker_file(session, 1), "of an earlier life")
    logs = ActorLogs(session, copy, frozenset({SECRET}))
    add(worker_file(session, 1), "later")
    add(worker_file(session, 7), ":job_id:01000000", ":actor_name:policy-0", "hello")
    add(worker_file(session, 7, "err"), f"a traceback with {SECRET}")
    add(session / "logs" / "raylet.out", "of Ray itself")
    for _ in range(2):
        logs.copy()
    assert sorted(copied(copy)) == [
        "(pid=1) later",
        "(pid=7) a traceback with ********",
        "(policy-0 pid=7) hello",
    ]
    with worker_file(session, 7).open("a") as file:
        file.write("half")
    logs.copy()
    add(worker_file(session, 7), " a line")
    logs.copy()
    assert copied(copy)[-1] == "(policy-0 pid=7) half a line"


def test_another_session_of_ray_has_other_files(tmp_path: Path) -> None:
    latest, copy = tmp_path / "session_latest", tmp_path / "actors-w.log"
    logs = ActorLogs(latest, copy, frozenset())
    logs.copy()
    for number, session in enumerate(("one", "two")):
        add(worker_file(tmp_path / session, 5), f"line {number}")
        latest.unlink(missing_ok=True)
        latest.symlink_to(tmp_path / session)
        logs.copy()
    assert copied(copy) == ["(pid=5) line 0", "(pid=5) line 1"]


def test_the_copy_is_begun_anew_before_it_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_logs, "MOST_BYTES", 1000)
    session, copy = tmp_path / "session", tmp_path / "actors-w.log"
    logs = ActorLogs(session, copy, frozenset())
    for number in range(50):
        add(worker_file(session, 1), f"line {number}")
        logs.copy()
    assert copy.stat().st_size <= 1000
    assert copied(copy)[-1] == "(pid=1) line 49"
    before = tmp_path / "actors-w.log.1"
    assert before.stat().st_size <= 1000
    number = int(copied(copy)[0].rpartition(" ")[2])
    assert copied(before)[-1] == f"(pid=1) line {number - 1}"
    assert len(list(tmp_path.glob("actors-*"))) == 2


def test_a_flood_is_cut_and_the_newest_lines_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_logs, "READ_BYTES", 1000)
    session, copy = tmp_path / "session", tmp_path / "actors-w.log"
    logs = ActorLogs(session, copy, frozenset())
    add(worker_file(session, 1), *(f"line {number}" for number in range(10_000)))
    logs.copy()
    lines = copied(copy)
    assert re.fullmatch(r"\(pid=1\) \[\.\.\. \d+ bytes are left out \.\.\.\]", lines[0])
    assert lines[-1] == "(pid=1) line 9999"
    assert len(lines) < 120
    assert re.fullmatch(r"\(pid=1\) line \d{4}", lines[1])


def test_a_line_without_an_end_is_left_out_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_logs, "READ_BYTES", 1000)
    session, copy = tmp_path / "session", tmp_path / "actors-w.log"
    logs = ActorLogs(session, copy, frozenset({SECRET}))
    path = worker_file(session, 1)
    with path.open("w") as file:
        file.write("x" * 990 + SECRET[:10])
    logs.copy()
    add(path, SECRET[10:], "whole")
    logs.copy()
    lines = copied(copy)
    assert lines[-1] == "(pid=1) whole"
    assert not any(SECRET[:10] in line or SECRET[10:] in line for line in lines)


def test_what_another_user_may_have_put_there_is_not_read(tmp_path: Path) -> None:
    session, copy = tmp_path / "session", tmp_path / "actors-w.log"
    secret = tmp_path / "secret"
    add(secret, "of another")
    logs = ActorLogs(session, copy, frozenset())
    worker_file(session, 1).symlink_to(secret)
    os.mkfifo(worker_file(session, 2))
    add(worker_file(session, 4), "ours")
    if os.geteuid() == 0:
        add(worker_file(session, 3), "theirs")
        os.chown(worker_file(session, 3), 12345, 12345)
    logs.copy()
    assert copied(copy) == ["(pid=4) ours"]


GATHERS = """
import os, sys, time
from entrypoint.config.read import read_settings
from entrypoint.node.actor_logs import copying

with copying(read_settings(os.environ)):
    time.sleep(60)
"""


def test_the_copy_of_a_node_that_is_killed_is_there(tmp_path: Path) -> None:
    run, ray = tmp_path / "run", tmp_path / "own" / "ray"
    given = {
        "PATH": os.environ["PATH"],
        "ROLLCALL_RUN_DIR": str(run),
        "ROLLCALL_RAY_TEMP_DIR": str(ray.parent),
        "ROLLCALL_NODE_NAME": "w",
    }
    if len(str(ray)) > ray_home.LONGEST:  # no socket is made here, but the limit is checked
        short = Path(f"/tmp/actor-logs-{os.getpid()}")
        short.symlink_to(tmp_path)
        given["ROLLCALL_RAY_TEMP_DIR"] = str(short / "own")
    try:
        (ray / "session_latest" / "logs").mkdir(parents=True)
        with subprocess.Popen([sys.executable, "-c", GATHERS], env=given) as node:
            copy = run / "logs" / "actors-w.log"
            number = 0

            def lines_come() -> bool:
                nonlocal number
                number += 1
                add(worker_file(ray / "session_latest", 9), f"line {number}")
                return bool(copied(copy))

            eventually(lines_come)
            node.kill()
        assert copied(copy)[-1].startswith("(pid=9) line ")
    finally:
        Path(f"/tmp/actor-logs-{os.getpid()}").unlink(missing_ok=True)
