"""A head's control port on loopback, its observer, and what a worker sends to it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract.run_dir import RunFiles
from entrypoint.cluster.access import Keys, page_link
from entrypoint.cluster.client import ControlClient
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.roll_observer import RollObserver
from entrypoint.cluster.server import ControlServer
from entrypoint.cluster.serving import Listener
from entrypoint.net.http import tls
from entrypoint.net.port_block import PortBlock
from entrypoint.net.sockets import host_port, listen
from entrypoint.run import token as run_token
from entrypoint.run.tls.files import Served
from tests.support.waiting import eventually

TOKEN = "correct-horse-battery"
VERSIONS = {"python": "3.12.4", "ray": "2.55.0"}
HEAD = NodeInfo(node="head", address="127.0.0.2", versions={})


class Recorder:
    """A `RollObserver`."""

    def __init__(self) -> None:
        self.check_ins: list[tuple[str, str | None]] = []
        """Node and, if it was refused, why."""
        self.rejoins: list[str] = []
        self.differences: list[str] = []
        self.leaves: list[tuple[str, str]] = []
        self.stops: list[str] = []
        self.token_changed_for: list[str] | None = None
        """The workers that got a new token; None if there was none."""

    def checked_in(self, info: NodeInfo) -> None:
        self.check_ins.append((info.node, None))

    def refused(self, info: NodeInfo, reason: str) -> None:
        self.check_ins.append((info.node, reason))

    def rejoined(self, info: NodeInfo) -> None:
        self.rejoins.append(info.node)

    def differs(self, sentence: str) -> None:
        self.differences.append(sentence)

    def token_changes(self) -> None:
        self.token_changed_for = []

    def token_changed(self, told: Sequence[str], not_told: Sequence[str]) -> None:
        self.token_changed_for = [*told]

    def leaving(self, worker: str, why: str) -> None:
        self.leaves.append((worker, why))

    def stop_requested(self, why: str) -> None:
        self.stops.append(why)


def control_server(
    run_dir: Path,
    port: int,
    token: str,
    registry: NodeRegistry | None = None,
    observer: RollObserver | None = None,
    tls: Served | None = None,
) -> ControlServer:
    """By default the port of a head that waits for one worker."""
    registry = registry or NodeRegistry(HEAD, 1, "first")
    listener = Listener(listen(port), tls)
    return ControlServer(registry, observer or Recorder(), RunFiles(run_dir), Keys(token), listener)


def node_info(node: str, address: str = "127.0.0.3", **versions: str) -> NodeInfo:
    return NodeInfo(node=node, address=address, versions=VERSIONS | versions)


class Head:
    """A control port with what it told the head about."""

    def __init__(
        self, run: Path, port: int = 0, address: str = "", tls: Served | None = None
    ) -> None:
        """`address`: the one at which it listens; "": all."""
        self.heard = Recorder()
        self._reserved = PortBlock()
        self.port = port or self._reserved.first
        self.run = RunFiles(run)
        self.keys = Keys(TOKEN)
        registry = NodeRegistry(node_info("head", "127.0.0.2"), 2, "first")
        listener = Listener(listen(self.port, address), tls)
        self.control = ControlServer(registry, self.heard, self.run, self.keys, listener)

    def client(self, token: str = TOKEN, host: str = "127.0.0.1") -> ControlClient:
        return ControlClient(host, self.port, token)

    def link(self, *, controls: bool = False) -> str:
        """The page's link with the read-only key, or with the operator key."""
        key = run_token.for_page(TOKEN) if controls else run_token.read_only(TOKEN)
        return page_link(f"http://127.0.0.1:{self.port}", key, controls=controls)

    def status(self, method: str, path: str, key: str) -> int:
        """The status of the answer, whose body may never end."""
        url, headers = f"http://127.0.0.1:{self.port}{path}", {"Authorization": f"Bearer {key}"}
        with httpx.stream(method, url, headers=headers, verify=tls()) as answer:
            return answer.status_code

    def get(self, path: str, token: str = TOKEN) -> httpx.Response:
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.get(url, headers={"Authorization": f"Bearer {token}"}, verify=tls())


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    head = Head(tmp_path)
    with head.control:
        eventually(lambda: answers(head.port))
        yield head


@contextmanager
def asking(head: Head, node: str) -> Iterator[None]:
    """A connection on which `node` asks for the outcome; its end is that of a killed process."""
    with socket.create_connection(("127.0.0.1", head.port)) as asker:
        asker.sendall(
            f"GET /v1/outcome?node={node} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        eventually(lambda: head.control._registry._entries[node].asking == 1)
        yield


def answers(port: int, address: str = "127.0.0.1") -> bool:
    try:
        return httpx.get(f"http://{host_port(address, port)}/healthz", verify=tls()).is_success
    except httpx.HTTPError:
        return False


def shared(node: str, **changes: Any) -> NodeInfo:
    """What a worker with the head's time says about itself."""
    info = NodeInfo(node=node, address="127.0.0.3", versions=VERSIONS, clock=time.time())
    return replace(info, **changes)


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Head]:
    """A head that asks workers to show that its run directory is theirs."""
    head = Head(tmp_path)
    head.control._registry.me = replace(head.control._registry.me, storage="first")
    with head.control:
        yield head
