"""The control port under connections that bring no token, or no end."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from entrypoint.cluster.client import ControlClient
from entrypoint.net.port_block import PortBlock
from entrypoint.processes.inbox import Message
from env.http import connections
from env.http.connections import owner_of
from tests.support.connections import is_closed
from tests.support.control import TOKEN, Head, answers, asking, node_info
from tests.support.job_head import JobHead, job_head
from tests.support.waiting import eventually

__all__ = ["job_head"]

DESCRIPTORS = 200
ENDLESS = b"GET /v1/state HTTP/1.1\r\nHost: x\r\n"


@contextmanager
def half_open(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections on which a request begins and does not end."""
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            opened[-1].sendall(ENDLESS)
        yield opened


def test_a_request_whose_headers_do_not_end_is_cut_off(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their length, long before the deadline."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 600.0)
    lines = b"".join(b"a%d: b\r\n" % number for number in range(1_000))
    with socket.create_connection(("127.0.0.1", head.port)) as connection:
        connection.sendall(ENDLESS)
        connection.sendall(lines * 10)
        eventually(lambda: is_closed(connection))
    assert answers(head.port)


def test_a_connection_without_a_request_is_closed_and_one_with_the_token_stays(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    head.client().check_in(node_info("a"), joined=True)
    with half_open(head.port, 3) as opened, asking(head, "a"):
        eventually(lambda: all(map(is_closed, opened)))
        assert head.control._registry._entries["a"].asking == 1


def test_a_proven_connection_has_a_deadline_for_each_request(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    state = ENDLESS + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", head.port)) as connection:
        connection.sendall(state)
        assert connection.recv(1024).startswith(b"HTTP/1.1 200")
        connection.sendall(state[:-2])
        began = time.monotonic()
        eventually(lambda: is_closed(connection))
        assert time.monotonic() - began < 4.0  # uvicorn's own, without a byte, are 5 s


def test_a_body_with_the_token_may_arrive_for_longer_than_one_deadline(
    job_head: JobHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)

    def parts() -> Iterator[bytes]:
        for _ in range(15):
            yield b"x" * 100
            time.sleep(0.1)

    path = f"/v1/packages/_ray_pkg_{'0' * 64}.zip"
    url, headers = job_head.environment["ROLLCALL_URL"], {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.put(url + path, content=parts(), headers=headers).status_code == 201
    (package,) = job_head.run.packages.iterdir()
    assert package.stat().st_size == 1500
    assert job_head.run.packages.stat().st_mode & 0o777 == 0o700


def test_an_address_loses_its_oldest_unproven_connection_and_no_proven_one(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "NEW_SECONDS", 0.0)
    monkeypatch.setattr(connections, "UNPROVEN_OF_ADDRESS", 20)
    head.client().check_in(node_info("a"), joined=True)
    with asking(head, "a"), half_open(head.port, 50) as opened:
        eventually(lambda: all(map(is_closed, opened[:30])))
        assert not any(map(is_closed, opened[-15:]))
        assert head.control._registry._entries["a"].asking == 1


def test_hundreds_of_nodes_that_come_at_once_from_one_address_are_all_served(head: Head) -> None:
    head.client().check_in(node_info("a"), joined=True)
    question = (
        f"GET /v1/outcome?node=a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    )
    with ExitStack() as stack:
        address = ("127.0.0.1", head.port)
        opened = [stack.enter_context(socket.create_connection(address)) for _ in range(300)]
        for connection in opened:
            connection.sendall(question.encode())
        entry = head.control._registry._entries["a"]
        eventually(lambda: entry.asking == 300)


@contextmanager
def served(run: Path) -> Iterator[tuple[int, Path]]:
    """A control port with few descriptors; its port, and the file of what its process says."""
    said = run / "said"
    with PortBlock() as port, said.open("w") as console:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.control_process"),
                *(str(run), str(port), TOKEN, str(DESCRIPTORS)),
            ],
            stdin=subprocess.PIPE,
            stdout=console,
            stderr=console,
        )
        try:
            eventually(lambda: answers(port), seconds=30)
            yield port, said
        finally:
            process.kill()
            process.communicate()


def test_a_head_with_few_descriptors_serves_its_workers_while_others_hold_connections_open(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as (port, said):
        client = ControlClient("127.0.0.1", port, TOKEN)
        client.check_in(node_info("a"), joined=True)
        heard: list[Message] = []
        client.watch("a", "first", heard.append)
        with ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(half_open(port, DESCRIPTORS // 2))
                ControlClient("127.0.0.1", port, TOKEN).check_in(node_info("b", "127.0.0.4"))
                state = ControlClient("127.0.0.1", port, TOKEN).command("GET", "/v1/state")
                assert [node["present"] for node in state["nodes"]] == [True, True]
        assert heard == []
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"nonsense\r\n\r\n")
                assert connection.recv(1024).startswith(b"HTTP/1.1 400")
        assert len(said.read_text().splitlines()) == 1


def test_health_says_only_that_the_head_answers(head: Head) -> None:
    told = httpx.get(f"http://127.0.0.1:{head.port}/healthz")
    assert told.json() == {"status": "ok"}
    assert "server" not in told.headers


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("", ""),
    ],
)
def test_the_addresses_of_one_ipv6_network_have_one_owner(address: str, owner: str) -> None:
    assert owner_of(address) == owner


@pytest.mark.parametrize("key", ["", f"Authorization: Bearer {TOKEN}\r\n"])
def test_of_requests_that_come_together_only_the_first_is_answered(head: Head, key: str) -> None:
    """Else one connection keeps the server at work for minutes, with a key or without."""
    request = f"GET /healthz HTTP/1.1\r\nHost: x\r\n{key}\r\n".encode()
    with socket.create_connection(("127.0.0.1", head.port), timeout=10) as connection:
        connection.sendall(request * 1000)
        answer = b""
        with suppress(ConnectionResetError):  # what was not read is thrown away
            while part := connection.recv(2**16):
                answer += part
    assert answer.count(b"HTTP/1.1 ") <= 1


def test_a_connection_serves_request_after_request(head: Head) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", head.port), timeout=10) as connection:
        for _ in range(3):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"}") and (part := connection.recv(4096)):
                answer += part
            assert answer.startswith(b"HTTP/1.1 200")
