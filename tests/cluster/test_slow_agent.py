"""A real Ray on a busy machine: its agent needs longer than the raylet waits for it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.parsers import DAEMON_PORTS
from entrypoint.config.read import read_settings
from entrypoint.net.port_block import PortBlock
from entrypoint.node.ray_head import HeadRay
from entrypoint.processes.inbox import Inbox
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(240)]
RAYS_LIMIT = 15
"""Seconds that a raylet of Ray 2.55 waits for an agent's port."""
SLOW = f"""
import sys, time
if any(word.endswith("dashboard/agent.py") for word in sys.orig_argv):
    time.sleep({RAYS_LIMIT} + 5)
"""
PORTS = DAEMON_PORTS + 30


@pytest.fixture
def ray_dir() -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        yield Path(directory)


def test_a_node_whose_agent_needs_longer_than_ray_waits_starts_at_once(
    tmp_path: Path, ray_dir: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    with PortBlock(PORTS + 2) as first:
        environ = {
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "ROLLCALL_RUN_DIR": str(tmp_path / "run"),
            "ROLLCALL_NODE_NAME": "busy",
            "ROLLCALL_RAY_TEMP_DIR": str(ray_dir),
            "ROLLCALL_RECIPE": "command",
            "ROLLCALL_RAY_PORT": str(first + PORTS),
            "ROLLCALL_DASHBOARD_PORT": str(first + PORTS + 1),
            "ROLLCALL_WORKER_PORTS": f"{first}-{first + PORTS - 1}",
        }
        settings = read_settings(environ, ["true"])
        inbox = Inbox()
        me = NodeInfo(node="busy", address="127.0.0.1", versions={})
        with HeadRay(settings, me, "the-token", inbox) as ray:
            assert ray._node is not None
            began = time.monotonic()
            ray.wait_ready()
            eventually(lambda: len(ray.alive()) == 1, seconds=120)
            daemon = ray._node._raylet
            assert daemon is not None
            assert inbox.take(timeout=max(0.1, began + RAYS_LIMIT + 15 - time.monotonic())) is None
            assert daemon.lives
            assert len(ray.alive()) == 1
