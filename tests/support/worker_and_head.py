"""A worker in this process, and the control port of its head."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.server import ControlServer
from entrypoint.config.settings import Settings
from entrypoint.machine.inventory import versions
from entrypoint.node import worker
from entrypoint.processes.inbox import Inbox
from tests.support.control import TOKEN, control_server


@pytest.fixture
def environ(tmp_path: Path, free_port: int) -> Iterator[dict[str, str]]:
    """A worker's, whose head's Ray takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as ray, TemporaryDirectory() as short:
        yield {
            "RAY_WORKER": "1",
            "ROLLCALL_HEAD_ADDRESS": "127.0.0.1",
            "ROLLCALL_CONTROL_PORT": str(free_port),
            "ROLLCALL_RAY_PORT": str(ray.getsockname()[1]),
            "ROLLCALL_RAY_TEMP_DIR": short,
            "ROLLCALL_RUN_DIR": str(tmp_path),
            "ROLLCALL_RECIPE": "command",
            "ROLLCALL_NODE_NAME": f"worker-{os.getpid()}",
            "ROLLCALL_TOKEN": TOKEN,
        }


def head_of(settings: Settings) -> ControlServer:
    """Of a worker with these settings."""
    me = NodeInfo(node="head", address="127.0.0.2", versions=versions(settings))
    registry = NodeRegistry(me, 1, "first")
    return control_server(settings.run_dir, settings.control_port, TOKEN, registry)


def serve(settings: Settings, inbox: Inbox | None = None) -> int:
    code = worker.serve(settings, {}, inbox or Inbox())
    assert isinstance(code, int)
    return code
