"""A Ray whose files are deleted while it runs, as by a cleaner of /tmp."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.node import ray_command_line, ray_files, ray_node
from entrypoint.node.ray_node import RayNode
from entrypoint.processes.inbox import Inbox, RayEnded
from entrypoint.processes.process import find_marked, find_ours_or_orphaned
from tests.support.waiting import eventually

ME = NodeInfo(node="n", address="127.0.0.2", versions={})
NEEDED = ("raylet", "plasma_store", "logs", "python")


@pytest.fixture
def session() -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        session = Path(directory) / "session"
        (session / "logs").mkdir(parents=True)
        for name in ("raylet", "plasma_store", "python"):
            (session / name).touch()
        yield session


@pytest.fixture
def settings(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a node whose `ray start` becomes a program with the command line of Ray's daemon."""
    line = [
        *("/opt/ray/core/src/ray/raylet/raylet", "-c", "sleep 60; :"),
        f"--raylet_socket_name={session / 'raylet'}",
        f"--store_socket_name={session / 'plasma_store'}",
        "--node_manager_port=10002",
        f"--python_worker_command={session / 'python'} /opt/default_worker.py --node-ip-address=x",
        f"--log_dir={session / 'logs'}",
    ]
    program = tmp_path / "ray"
    program.write_text(f"#!{sys.executable}\nimport os\nos.execv('/bin/sh', {line!r})\n")
    program.chmod(0o755)
    monkeypatch.setattr(ray_command_line, "ray_command", lambda: (str(program),))
    monkeypatch.setattr(ray_node, "LOOK_SECONDS", 0.1)
    given = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_RAY_TEMP_DIR": str(session.parent)}
    return read_settings({**given, "ROLLCALL_RECIPE": "command"}, ["true"])


@pytest.fixture
def node(settings: Settings, session: Path) -> Iterator[tuple[RayNode, Inbox]]:
    """As soon as it is ready, and what it says of its end."""
    told = Inbox()
    with RayNode(settings, [], ME, "the-token", told) as node:
        eventually(
            lambda: len(ray_files.needed(find_ours_or_orphaned(settings.node_mark))) == len(NEEDED)
        )
        node.wait_ready(lambda: None, threading.Event())
        yield node, told


@pytest.mark.parametrize("name", NEEDED)
def test_a_ray_that_can_start_no_worker_any_more_is_ended_and_the_reason_is_told(
    node: tuple[RayNode, Inbox], session: Path, settings: Settings, name: str
) -> None:
    path = session / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    ended = node[1].take(timeout=10)
    assert isinstance(ended, RayEnded)
    assert ended.why == f"Ray can start no worker there, as {path} is gone"
    assert not node[0].running
    eventually(lambda: find_marked(settings.node_mark) == [])


def test_a_socket_that_comes_after_ray_was_ready_is_missed_once_it_was_there(
    settings: Settings, session: Path
) -> None:
    """On a head, `ray start` has a dashboard before it has the daemon's sockets."""
    told = Inbox()
    (session / "raylet").unlink()
    with RayNode(settings, [], ME, "the-token", told) as node:
        node.wait_ready(lambda: None, threading.Event())
        assert told.take(timeout=0.5) is None
        ended = None
        while ended is None:  # until the node has seen the socket
            (session / "raylet").touch()
            time.sleep(0.5)
            (session / "raylet").unlink()
            ended = told.take(timeout=1)
        assert isinstance(ended, RayEnded)
        assert ended.why.endswith(f"as {session / 'raylet'} is gone")


def test_a_ray_that_ends_by_itself_has_no_reason_of_the_nodes(
    node: tuple[RayNode, Inbox], settings: Settings
) -> None:
    for process in find_marked(settings.node_mark):
        process.kill()
    assert node[1].take(timeout=10) == RayEnded(137)


def test_what_cannot_be_looked_at_now_is_not_taken_for_gone(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(path: Path) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    gone = session / "gone"
    assert ray_files.missing([session / "logs", gone]) == gone
    assert ray_files.missing([session / "logs" / "file" / "below"]) is not None
    monkeypatch.setattr(Path, "stat", refuses)
    assert ray_files.missing([gone]) is None
