"""The raylet's end: what it and its agents said, in a line, and who holds a port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.node import ray_command_line, ray_node, raylet
from entrypoint.node.ray_node import RayNode
from entrypoint.node.raylet import Raylet
from entrypoint.processes import process
from entrypoint.processes.inbox import Inbox, RayEnded, RayFailedError
from tests.support.waiting import eventually

ME = NodeInfo(node="n", address="127.0.0.1", versions={})
LATE = """\
[2026-11-26 08:03:12,120 I 412 412] (raylet) agent_manager.cc:84: Monitor agent process
[2026-11-26 08:03:27,151 C 412 412] (raylet) node_manager.cc:311:  An unexpected system state has \
occurred. You have likely discovered a bug in Ray. Please report this issue at \
https://github.com/ray-project/ray/issues and we'll work with you to fix it. Check failed: \
port.ok() Timed out waiting for file /tmp/ray/session_1/dashboard_agent_listen_port_ab
*** StackTrace Information ***
/opt/ray/core/src/ray/raylet/raylet(+0xc0ffee) [0x55d0] ray::operator<<()
"""
TAKEN = """\
2026-11-26 08:03:12,120\tINFO agent.py:160 -- Dashboard agent grpc address: 127.0.0.1:10004
Traceback (most recent call last):
  File "/opt/ray/dashboard/agent.py", line 487, in <module>
    loop.run_until_complete(agent.run())
OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', {}): address already \
in use
"""


@pytest.fixture
def node(tmp_path: Path) -> Raylet:
    (tmp_path / "logs").mkdir()
    return Raylet(psutil.Process(), tmp_path, tmp_path / "logs", "ab")


def test_what_the_raylet_said_last_is_quoted_without_its_frames(node: Raylet) -> None:
    (node.logs / "raylet.out").write_text(LATE)
    assert node.why_ended() == (
        "Check failed: port.ok() Timed out waiting for file "
        "/tmp/ray/session_1/dashboard_agent_listen_port_ab"
    )


def test_of_a_port_that_is_taken_the_holder_is_named(node: Raylet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (node.logs / "dashboard_agent.log").write_text(TAKEN.format(port))
        said = node.why_ended()
    assert "OSError: [Errno 98] error while attempting to bind on address" in said
    name = psutil.Process().name()
    assert said.endswith(f"(port {port} is held by {name} (process {os.getpid()}))")


def test_what_is_no_error_is_not_quoted(node: Raylet) -> None:
    (node.logs / "raylet.out").write_text("[2026-11-26 08:03:12,120 I 412 412] all is well\n")
    assert node.why_ended() == ""


def test_the_ports_that_the_raylet_waits_for_are_told_and_an_agents_own_word_stays(
    node: Raylet,
) -> None:
    own = node.session / "metrics_export_port_ab"
    own.write_text("-1")
    node.tell_ports(10002)
    told = {path.name: path.read_text() for path in node.session.glob("*_ab")}
    assert told == {
        "metrics_agent_port_ab": "10004",
        "dashboard_agent_listen_port_ab": "10005",
        "metrics_export_port_ab": "-1",
        "runtime_env_agent_port_ab": "10007",
    }


def test_the_files_are_those_that_rays_agents_write(tmp_path: Path) -> None:
    names = [f"{name}_{'ab' * 28}" for name in raylet.PORT_FILES]
    code = f"""
from ray import _raylet
for name in {list(raylet.PORT_FILES)!r}:
    assert name in [getattr(_raylet, one) for one in dir(_raylet) if one.endswith("_PORT_NAME")]
    _raylet.persist_port({str(tmp_path)!r}, {"ab" * 28!r}, name, 10004)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        names, "10004"
    )


@pytest.fixture
def short() -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture
def settings(tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a node whose `ray start` goes on for ever, with a raylet that ends when `end` is there."""
    (tmp_path / "session" / "logs").mkdir(parents=True)
    daemon = tmp_path / "raylet"
    daemon.symlink_to("/bin/sh")
    options = f"--session_dir={tmp_path}/session --log_dir={tmp_path}/session/logs --node_id=ab"
    script = f"until [ -e {tmp_path}/end ]; do sleep 0.05; done"
    ray = tmp_path / "ray"
    ray.write_text(f"#!/bin/sh\n{daemon} -c '{script}' {options} &\nexec sleep 60\n")
    ray.chmod(0o755)
    monkeypatch.setattr(ray_command_line, "ray_command", lambda: (str(ray),))
    monkeypatch.setattr(ray_node, "LOOK_SECONDS", 0.1)
    environ = {
        "ROLLCALL_RUN_DIR": str(tmp_path),
        "ROLLCALL_NODE_NAME": f"raylet-{os.getpid()}",
        "ROLLCALL_RAY_TEMP_DIR": str(short),
        "ROLLCALL_RECIPE": "command",
    }
    return read_settings(environ, ["true"])


def test_the_end_of_a_raylet_ends_the_wait_although_ray_start_waits_on(
    tmp_path: Path, settings: Settings
) -> None:
    said = "Check failed: the disk is gone"
    (tmp_path / "session/logs/raylet.out").write_text(f"[x C 1 1] (raylet) main.cc:5:  {said}\n")
    seen = tmp_path / "session/dashboard_agent_listen_port_ab"

    def end_once_seen() -> None:
        eventually(seen.exists)
        (tmp_path / "end").touch()

    threading.Thread(target=end_once_seen, daemon=True).start()
    node = RayNode(settings, (), ME, "t", Inbox())
    with node, pytest.raises(RayFailedError) as failed:
        node.wait_ready(node.says_started, threading.Event())
    assert str(failed.value).endswith(f"raylet ended: {said}")


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (LATE, "Check failed: port.ok() Timed out waiting for file /tmp/ray/session_1/dashboard_"),
        ("", "it said nothing; its logs are in {}/session/logs"),
    ],
)
def test_the_end_of_a_raylet_of_a_node_that_is_ready_is_told_with_its_last_words_or_its_logs(
    tmp_path: Path, settings: Settings, output: str, why: str
) -> None:
    told = Inbox()
    with RayNode(settings, (), ME, "t", told) as node:
        node.wait_ready(lambda: None, threading.Event())
        eventually(lambda: (tmp_path / "session/dashboard_agent_listen_port_ab").exists())
        (tmp_path / "session/logs/raylet.out").write_text(output)
        (tmp_path / "end").touch()
        ended = told.take(timeout=10)
    assert isinstance(ended, RayEnded)
    assert ended.why.startswith(f"Ray's raylet ended: {why.format(tmp_path)}")
    assert not node.running


def test_a_node_that_has_lost_its_head_ends_what_does_not_end_itself(
    tmp_path: Path, settings: Settings
) -> None:
    told = Inbox()
    ray = tmp_path / "ray"
    deaf = "trap '' TERM\n"  # as a rank in the middle of a kernel
    ray.write_text(ray.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{deaf}"))
    with RayNode(settings, (), ME, "t", told) as node:
        node.wait_ready(lambda: None, threading.Event())
        eventually(lambda: (tmp_path / "session/dashboard_agent_listen_port_ab").exists())
        assert len(process.find_marked(settings.node_mark)) > 1
        node.abandon()
        eventually(lambda: not process.find_marked(settings.node_mark))
        eventually(lambda: not node.running)
    assert told.take(timeout=0) is None, "nobody asks for Ray to be started again"
