"""Both of Ray's debuggers, reached from outside as a user reaches them, on a worker's node."""

from __future__ import annotations

import itertools
import json
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_cluster import HEAD, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(400)]

WORKER = 1
PROGRAM = Path(__file__).with_name("debugged.py")
SECONDS = 30.0


@contextmanager
def running(root: Path, task: str, **env: str) -> Iterator[Cluster]:
    job = (sys.executable, str(PROGRAM), task)
    cluster = Cluster(root / task, workers=1, job=job, ROLLCALL_MAX_RESTARTS="0", **env)
    try:
        cluster.start(HEAD, WORKER)
        yield cluster
    finally:
        cluster.close()


def address(cluster: Cluster) -> str:
    return cluster.environment(WORKER)["ROLLCALL_NODE_ADDRESS"]


def said(cluster: Cluster) -> str:
    log = cluster.run.logs / "attempt-1.log"
    return log.read_text() if log.exists() else ""


def told(cluster: Cluster, pattern: str) -> tuple[str, int]:
    """Where a debugger listens, as the job's log tells it."""
    cluster.until(lambda: bool(re.search(pattern, said(cluster))), pattern, within=240)
    found = re.search(pattern, said(cluster))
    assert found is not None
    return found[1], int(found[2])


class Prompt:
    """The other end of Ray's legacy debugger, as `ray debug` is."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=SECONDS)

    def read(self) -> str:
        """Up to the next prompt."""
        text = b""
        while not text.endswith(b"(Pdb) "):
            part = self._socket.recv(4096)
            assert part, text.decode()
            text += part
        return text.decode()

    def say(self, command: str) -> None:
        self._socket.sendall(f"{command}\n".encode())


def test_a_breakpoint_is_reached_from_outside_where_rays_own_variable_alone_asks_for_it(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "stops", RAY_DEBUG="legacy") as cluster:
        host, port = told(cluster, r"RemotePdb session open at (\S+):(\d+)")
        assert host == address(cluster)
        prompt = Prompt(host, port)
        assert "debugged.py" in prompt.read()
        prompt.say("p answer")
        assert prompt.read().startswith("42")
        prompt.say("continue")
        assert cluster.exit_codes(within=60) == {HEAD: 0, WORKER: 0}
        assert "the task says 43" in said(cluster)


class Adapter:
    """A client of debugpy's: an editor, as far as it is needed here."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=SECONDS)
        self._file = self._socket.makefile("rb")
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []

    def send(self, command: str, **arguments: Any) -> int:
        number = next(self._numbers)
        row = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(row).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return number

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The body of the answer."""
        number = self.send(command, **arguments)
        while (row := self._next()).get("request_seq") != number:
            self._events.append(row)
        assert row["success"], row
        return dict(row.get("body") or {})

    def event(self, name: str) -> dict[str, Any]:
        """The body of the next event of this name."""
        while True:
            for row in self._events:
                if row.get("event") == name:
                    self._events.remove(row)
                    return dict(row.get("body") or {})
            self._events.append(self._next())

    def _next(self) -> dict[str, Any]:
        length = 0
        while line := self._file.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        assert length, "debugpy has gone"
        return dict(json.loads(self._file.read(length)))


def test_a_task_that_fails_waits_for_debugpy_on_its_node(tmp_path: Path) -> None:
    with running(tmp_path, "fails", DEBUG_RAY="post-mortem") as cluster:
        host, port = told(cluster, r"Ray debugger is listening on (\S+):(\d+)")
        assert host == address(cluster)
        adapter = Adapter(host, port)
        adapter.ask("initialize", adapterID="python", clientID="a test", linesStartAt1=True)
        adapter.send("attach", justMyCode=False)
        adapter.event("initialized")
        adapter.ask("setExceptionBreakpoints", filters=["uncaught"])
        adapter.ask("configurationDone")
        stopped = adapter.event("stopped")
        assert stopped["reason"] == "exception"
        assert "42 is a mistake" in json.dumps(stopped)
        frames = adapter.ask("stackTrace", threadId=stopped["threadId"])["stackFrames"]
        (frame,) = [one for one in frames if one["name"] == "fails"]
        value = adapter.ask("evaluate", expression="answer", frameId=frame["id"])
        assert value["result"] == "42"
        adapter.ask("continue", threadId=stopped["threadId"])
        assert cluster.exit_codes(within=90) == {HEAD: 70, WORKER: 70}
