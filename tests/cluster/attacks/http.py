"""Attacks on every HTTP server of the product: `python -m tests.cluster.attacks.http` says what
they find.

The servers are real programs on loopback: the control port, the reward server, the retrieval
server. Each attack is bounded in count and time. A finding is one sentence; the last line counts
them. Exit code 1: something was found.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from contract.run_dir import RunFiles
from entrypoint.net.port_block import PortBlock
from entrypoint.run import token as run_token
from tests.support.connections import is_closed

ROOT = Path(__file__).parents[3]
TOKEN = "correct-horse-battery"
SERVICE_KEY = "the-key-of-all-services"
DESCRIPTORS = 1500
HEADERS = 100_000_000
"""Bytes."""
HALF_OPEN = 1_000
HOLD_SECONDS = 12.0
PIPELINED = 100_000
PIPELINED_SECONDS = 15.0
MOST_MEMORY = 30 * 2**20
"""Bytes that an attack may cost a server: its memory also changes by itself."""
MOST_DESCRIPTORS = 1200
SLOWEST = 2.0
"""Seconds within which health answers, also where other programs have the cores."""
MOST_LINES = 5
"""Lines of the console that an attack of one kind may cost."""


@dataclass(slots=True)
class Server:
    """A server that runs, as an attacker reaches it."""

    name: str
    popen: subprocess.Popen[bytes]
    port: int
    health: str
    path: str
    """What the key opens."""
    run: RunFiles
    log: Path
    slowest: float = 0.0
    """Seconds of the slowest answer of health."""
    process: psutil.Process = field(init=False)

    def __post_init__(self) -> None:
        self.process = psutil.Process(self.popen.pid)

    @property
    def memory(self) -> int:
        return int(self.process.memory_info().rss)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def get(self, path: str, **headers: str) -> httpx.Response:
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.get(url, headers=headers, timeout=5, trust_env=False)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """Ask health all the time; yield the list of what was wrong with it."""
        faults: list[str] = []
        over = threading.Event()
        self.slowest = 0.0
        elsewhere = httpx.HTTPTransport(local_address="127.0.0.9")

        def watch() -> None:
            while not over.wait(0.05):
                began = time.monotonic()
                try:
                    url = f"http://127.0.0.1:{self.port}{self.health}"
                    http.get(url, headers={"Connection": "close"}).raise_for_status()
                except httpx.HTTPError as error:
                    faults.append(f"health does not answer: {type(error).__name__}")
                self.slowest = max(self.slowest, time.monotonic() - began)

        thread = threading.Thread(target=watch)
        with httpx.Client(transport=elsewhere, timeout=5) as http:
            thread.start()
            try:
                yield faults
            finally:
                over.set()
                thread.join()
            if self.slowest > SLOWEST:
                faults.append(f"health needs {self.slowest:.1f} s")

    def grown(self, before: int, what: str) -> Iterator[str]:
        """Whether `what` has cost the server memory; to be asked while connections are open."""
        if (more := self.memory - before) > MOST_MEMORY:
            yield f"{what}: {more / 2**20:.0f} MiB more"
        if (opened := self.process.num_fds()) > MOST_DESCRIPTORS:
            yield f"{what}: {opened} descriptors"


def without_key(server: Server) -> Iterator[str]:
    """What the server gives to those who have no key, a wrong one, or half of it."""
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic Og=="}):
        url = f"http://127.0.0.1:{server.port}{server.path}"
        body: dict[str, Any] = {"query": ["1"], "prompts": ["1"], "labels": ["1"], "queries": ["a"]}
        method = "GET" if server.name == "control" else "POST"
        answer = httpx.request(method, url, json=body, headers=headers, timeout=30, trust_env=False)
        if answer.status_code != 401:
            yield f"{server.path} answers {answer.status_code} to {headers or 'no key'}"
    told = set(server.get(server.health).json())
    if told != {"status"}:
        yield f"{server.health} tells strangers {', '.join(sorted(told))}"


def headers(server: Server) -> Iterator[str]:
    """100 MB of small headers on one connection, without a key."""
    before, sent = server.memory, 0
    lines = b"".join(b"a%d: b\r\n" % number for number in range(10_000))
    with server.watched() as faults, server.connect() as connection:
        connection.sendall(f"GET {server.path} HTTP/1.1\r\nHost: x\r\n".encode())
        try:
            while sent < HEADERS:
                connection.sendall(lines)
                sent += len(lines)
            yield f"{sent} bytes of headers were read on one connection"
        except OSError:
            pass
        yield from server.grown(before, f"{sent} bytes of headers")
    yield from faults


def half_open(server: Server) -> Iterator[str]:
    """Requests that do not end."""
    before, said = server.memory, len(server.said().splitlines())
    with server.watched() as faults, ExitStack() as stack:
        opened = []
        for _ in range(HALF_OPEN):
            with suppress(OSError):  # it was closed at once, or waits in the kernel
                opened.append(stack.enter_context(server.connect()))
                opened[-1].sendall(f"GET {server.path} HTTP/1.1\r\nHost: x\r\n".encode())
        time.sleep(HOLD_SECONDS)
        yield from server.grown(before, f"{HALF_OPEN} half-open connections")
        if left := sum(not is_closed(connection) for connection in opened):
            yield f"{left} of {HALF_OPEN} half-open connections live for {HOLD_SECONDS:g} s"
    yield from faults
    yield from lines_since(server, said)


def pipelined(server: Server) -> Iterator[str]:
    """100,000 requests on one connection, whose answers are read late."""
    before, said = server.memory, len(server.said().splitlines())
    request = f"GET {server.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with server.watched() as faults, server.connect() as connection:
        connection.settimeout(2.0)
        with suppress(OSError):
            connection.sendall(request * PIPELINED)
        time.sleep(2.0)
        yield from server.grown(before, f"{PIPELINED} pipelined requests")
        until = time.monotonic() + PIPELINED_SECONDS
        with suppress(OSError):
            while time.monotonic() < until and connection.recv(2**16):
                pass
        yield from server.grown(before, f"{PIPELINED} answers")
    yield from faults
    yield from lines_since(server, said)


def broken_off(server: Server) -> Iterator[str]:
    """Requests without a key that end in the middle of their bodies."""
    said = len(server.said().splitlines())
    start = "HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    for path in ("/", server.path, server.health):
        for _ in range(3):
            with server.connect() as connection:
                connection.sendall(f"POST {path} {start}Content-Length: 100\r\n\r\ntok".encode())
                time.sleep(0.05)
    time.sleep(0.5)
    yield from lines_since(server, said)


def lines_since(server: Server, before: int) -> Iterator[str]:
    lines = server.said().splitlines()[before:]
    if len(lines) > MOST_LINES:
        yield f"{len(lines)} lines of the console: {lines[0]!r} …"


def linked_logs(server: Server) -> Iterator[str]:
    """Logs that are links to the run's token, read with the read-only key."""
    key = {"Authorization": f"Bearer {run_token.read_only(TOKEN)}"}
    server.run.token.write_text("a-token-that-nobody-is-shown")
    server.run.logs.mkdir(exist_ok=True)
    (server.run.logs / "soft.log").symlink_to("../.token")
    os.link(server.run.token, server.run.logs / "hard.log")
    for name in ("soft", "hard"):
        answer = server.get(f"/v1/logs/{name}", **key)
        if "nobody" in answer.text:
            yield f"/v1/logs/{name} shows the token to the read-only key"
        elif answer.status_code != 404:
            yield f"/v1/logs/{name} answers {answer.status_code}"
        (server.run.logs / f"{name}.log").unlink()
    server.run.samples.symlink_to(server.run.logs / "real")
    (server.run.logs / "real").write_text(json.dumps({"token": "nobody"}) + "\n")
    if "nobody" in server.get("/v1/samples", **key).text:
        yield "/v1/samples follows a link"
    server.run.samples.unlink()


def odd_names(server: Server) -> Iterator[str]:
    """Logs whose names are not UTF-8, or no names."""
    key = {"Authorization": f"Bearer {TOKEN}"}
    server.run.logs.mkdir(exist_ok=True)
    odd = Path(os.fsdecode(bytes(server.run.logs) + b"/\xff\xfe.log"))
    odd.write_text("x")
    for path in ("/v1/logs", "/v1/logs/%ff%fe", "/v1/logs/a%00b", f"/v1/logs/{'a' * 3000}"):
        if (status := server.get(path, **key).status_code) >= 500:
            yield f"{path[:40]} answers {status} if a log has a name that is not UTF-8"
    odd.unlink()


OF_ALL: tuple[Callable[[Server], Iterator[str]], ...] = (
    without_key,
    headers,
    pipelined,
    broken_off,
    half_open,
)
OF_CONTROL: tuple[Callable[[Server], Iterator[str]], ...] = (linked_logs, odd_names)


@dataclass(frozen=True, slots=True)
class Program:
    """A server that is to be started."""

    name: str
    argv: tuple[str, ...]
    health: str
    path: str
    port: int = 0
    """0: it says so itself."""


@contextmanager
def started(program: Program, run: Path) -> Iterator[Server]:
    """Start a server in a process of its own, with its log in `run`."""
    log = run / f"{program.name}.log"
    path = os.pathsep.join([str(Path.cwd()), str(ROOT)])
    environment = {**os.environ, "ROLLCALL_SERVICE_KEY": SERVICE_KEY, "PYTHONPATH": path}
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [sys.executable, "-m", *program.argv],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
        )
    try:
        port = program.port or _port_in(log, popen)
        about = (program.name, popen, port, program.health, program.path)
        server = Server(*about, run=RunFiles(run), log=log)
        _wait_ready(server)
        yield server
    finally:
        popen.kill()
        popen.communicate()


def _port_in(log: Path, popen: subprocess.Popen[bytes]) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until and popen.poll() is None:
        if found := re.search(r" port (\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def _wait_ready(server: Server) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with suppress(httpx.HTTPError):
            server.get(server.health).raise_for_status()
            return
        time.sleep(0.05)
    raise AssertionError(server.said())


@contextmanager
def servers(directory: Path) -> Iterator[list[Server]]:
    """Start the three servers: they listen on all interfaces, as in a cluster."""
    corpus, index = directory / "corpus.jsonl", directory / "index"
    corpus.write_text(json.dumps({"id": "0", "contents": "Aaron\nAaron is a prophet."}) + "\n")
    build = ["-m", "env.prepare", "index", "--corpus", str(corpus), "--out", str(index)]
    subprocess.run([sys.executable, *build], check=True, capture_output=True, timeout=120)
    run = directory / "run"
    run.mkdir()
    with PortBlock() as port, ExitStack() as stack:
        control = ("tests.support.control_process", str(run), str(port), TOKEN, str(DESCRIPTORS))
        reward = ("env.server", "--task", "arithmetic", "--port", "0")
        retrieval = ("env.retrieval.server", "--index", str(index), "--port", "0")
        programs = (
            Program("control", control, "/healthz", "/v1/state", port),
            Program("reward", reward, "/health", "/get_reward"),
            Program("retrieval", (*retrieval, "--host", "0.0.0.0"), "/health", "/retrieve"),
        )
        yield [stack.enter_context(started(program, run)) for program in programs]


def attacked(directory: Path) -> list[str]:
    """What all attacks find on the servers, whose files are in this directory."""
    found = []
    with servers(directory) as running:
        for server in running:
            for attack in (*OF_ALL, *(OF_CONTROL if server.name == "control" else ())):
                before, began = server.memory, time.monotonic()
                findings = list(dict.fromkeys(attack(server)))
                found += [f"{server.name}, {attack.__name__}: {finding}" for finding in findings]
                print(
                    f"{server.name}, {attack.__name__}: {'; '.join(findings) or 'nothing'} "
                    f"({time.monotonic() - began:.1f} s, {before / 2**20:.0f} → "
                    f"{server.memory / 2**20:.0f} MiB, slowest health {server.slowest:.3f} s)",
                    flush=True,
                )
                server.slowest = 0.0
    return found


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="rollcall-attack-", dir="/tmp") as directory:
        found = attacked(Path(directory))
    print(f"found: {len(found) or 'nothing'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
