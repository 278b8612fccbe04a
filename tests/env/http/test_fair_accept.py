"""Who opens thousands of connections waits behind itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from env.http import fair_accept
from env.http.fair_accept import Listener

CROWD, ALONE = "127.0.0.7", "127.0.0.8"


class Noting(asyncio.Protocol):
    """Notes the addresses of the connections in the order in which they are served."""

    def __init__(self, served: list[str]) -> None:
        self._served = served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._served.append(transport.get_extra_info("peername")[0])


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as made:
        yield made


def served(listening: socket.socket, sources: list[str], *, until: int) -> list[str]:
    """The order in which connections from these addresses are served, which wait already."""
    order: list[str] = []

    async def serve() -> None:
        errors: list[OSError] = []
        listener = Listener(listening, lambda: Noting(order), lambda one: one, errors.append)
        listener.start()
        for _ in range(500):
            if len(order) >= until:
                break
            await asyncio.sleep(0.01)
        listener.close()
        assert errors == []

    with ExitStack() as stack:
        for source in sources:
            target = listening.getsockname()
            stack.enter_context(socket.create_connection(target, 5, (source, 0)))
        asyncio.run(serve())
    return order


def test_an_address_does_not_wait_behind_the_crowd_of_another(listening: socket.socket) -> None:
    order = served(listening, [*[CROWD] * 200, ALONE], until=201)
    assert order.count(CROWD) == 200
    assert order.index(ALONE) <= fair_accept.SERVED_AT_ONCE


def test_of_a_crowd_only_so_many_wait(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_accept, "WAITING_OF_ADDRESS", 20)
    order = served(listening, [*[CROWD] * 200, ALONE], until=21)
    assert sorted(order) == [CROWD] * 20 + [ALONE]
