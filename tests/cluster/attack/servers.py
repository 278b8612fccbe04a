"""What strangers of the network try on each HTTP server."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import httpx

from tests.cluster.attack.attacks import Attack, Boundary, by
from tests.cluster.attack.targets import Scene, observed
from tests.support.connections import is_closed

HEADERS = 100_000_000
"""Bytes."""
HALF_OPEN = 1_000
HOLD_SECONDS = 12.0
PIPELINED = 100_000
MOST_ANSWERED = 10
"""Requests that wait on one connection of which a server may answer so many."""
ANSWERING_SECONDS = 15.0
CONNECTIONS = 3_000
"""That bring a whole request each, one after the other."""
HELD = 200
"""Of them at a time."""
STATUS = b"HTTP/1.1 "


@by(Boundary.NETWORK)
def without_key(scene: Scene) -> Iterator[str]:
    """What servers give to those who have no key, a wrong one, or half of it."""
    body: dict[str, Any] = {"query": ["1"], "prompts": ["1"], "labels": ["1"], "queries": ["a"]}
    for server in scene.servers:
        method = "GET" if server is scene.head else "POST"
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic Og=="}):
            url = server.url(server.path)
            answer = httpx.request(
                method, url, json=body, headers=headers, timeout=30, trust_env=False
            )
            if answer.status_code != 401:
                yield f"{server.path} answers {answer.status_code} to {headers or 'no key'}"
        if (told := set(server.get(server.health).json())) != {"status"}:
            yield f"{server.health} tells strangers {', '.join(sorted(told))}"


@by(Boundary.NETWORK)
def headers(scene: Scene) -> Iterator[str]:
    """100 MB of small headers on one connection, without a key."""
    lines = b"".join(b"a%d: b\r\n" % number for number in range(10_000))
    for server in scene.servers:
        with observed(server) as seen, server.connect() as connection:
            sent = 0
            connection.sendall(f"GET {server.path} HTTP/1.1\r\nHost: x\r\n".encode())
            try:
                while sent < HEADERS:
                    connection.sendall(lines)
                    sent += len(lines)
                yield f"{server.name} reads {sent} bytes of headers on one connection"
            except OSError:
                pass
            seen.look(f"{sent} bytes of headers")
        yield from seen.findings


@by(Boundary.NETWORK)
def pipelined(scene: Scene) -> Iterator[str]:
    """100,000 requests on one connection, whose answers are read late."""
    for server in scene.servers:
        for path in (server.path, server.health):
            request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            with observed(server) as seen, server.connect() as connection:
                connection.settimeout(2.0)
                with suppress(OSError):
                    connection.sendall(request * PIPELINED)
                time.sleep(0.5)
                seen.look(f"{PIPELINED} pipelined requests")
                answered = answers_on(connection)
                seen.look(f"{PIPELINED} answers")
            if answered > MOST_ANSWERED:
                yield f"{server.name} answers {answered} requests to {path} that came together"
            yield from seen.findings


def answer_on(connection: socket.socket) -> bytes:
    """Return the begin of the answer; b"" if the connection is closed without one."""
    try:
        return connection.recv(100)
    except ConnectionError:
        return b""


def answers_on(connection: socket.socket) -> int:
    """Return how many answers come on a connection before it ends, or its time does."""
    count, rest, until = 0, b"", time.monotonic() + ANSWERING_SECONDS
    with suppress(OSError):
        while time.monotonic() < until and (part := connection.recv(2**16)):
            count += (rest + part).count(STATUS)
            rest = part[1 - len(STATUS) :]
    return count


@by(Boundary.NETWORK)
def many_requests(scene: Scene) -> Iterator[str]:
    """A connection for each of thousands of requests, none of which is waited for."""
    for server in scene.servers:
        request = f"GET {server.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        with observed(server) as seen:
            opened: deque[socket.socket] = deque()
            for _ in range(CONNECTIONS):
                with suppress(OSError):
                    opened.append(server.connect())
                    opened[-1].sendall(request)
                if len(opened) > HELD:
                    opened.popleft().close()
            seen.look(f"{CONNECTIONS} connections with a request each")
            for connection in opened:
                connection.close()
        yield from seen.findings


@by(Boundary.NETWORK)
def half_open(scene: Scene) -> Iterator[str]:
    """Requests that do not end, more than the servers have descriptors."""
    with ExitStack() as stack:
        seen = stack.enter_context(observed(*scene.servers))
        opened: dict[str, list[socket.socket]] = {server.name: [] for server in scene.servers}
        for server in scene.servers:
            line = f"GET {server.path} HTTP/1.1\r\nHost: x\r\n"
            for _ in range(HALF_OPEN):
                with suppress(OSError):  # it was closed at once, or waits in the kernel
                    opened[server.name].append(stack.enter_context(server.connect()))
                    opened[server.name][-1].sendall(line.encode())
        seen.look(f"{HALF_OPEN} half-open connections")
        time.sleep(HOLD_SECONDS)
        yield from scene.unwell()
        for name, connections in opened.items():
            if left := sum(not is_closed(connection) for connection in connections):
                yield f"{left} of {HALF_OPEN} half-open connections to {name} live"
        seen.look(f"{HALF_OPEN} half-open connections, {HOLD_SECONDS:g} s later")
    yield from seen.findings


@by(Boundary.NETWORK)
def nonsense(scene: Scene) -> Iterator[str]:
    """Bytes that are not a request, requests for another protocol, and bodies that break off."""
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    refusals = (b"HTTP/1.1 400", b"HTTP/1.1 401")
    form = "HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    for server in scene.servers:
        with observed(server) as seen:
            for sent in (b"nonsense\r\n\r\n", b"\x16\x03\x01" * 30 + b"\r\n\r\n", upgrade) * 50:
                with server.connect() as connection:
                    connection.sendall(sent)
                    if (answer := answer_on(connection)) and not answer.startswith(refusals):
                        yield f"{server.name} does not refuse {sent[:20]!r}"
            for path in ("/", server.path, server.health) * 3:
                with server.connect() as connection:
                    request = f"POST {path} {form}Content-Length: 100\r\n\r\ntok"
                    connection.sendall(request.encode())
                    time.sleep(0.05)
            time.sleep(0.5)
        yield from seen.findings
    yield from scene.unwell()


ATTACKS: tuple[Attack[Scene], ...] = (
    without_key,
    headers,
    pipelined,
    many_requests,
    half_open,
    nonsense,
)
