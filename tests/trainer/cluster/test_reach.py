"""Which nodes answer: who is silent is asked once, not at each look."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from trainer.cluster import placement, reach
from trainer.cluster.reach import Reach


class Node:
    """A port that accepts connections, or is silent as that of a machine without power."""

    def __init__(self, stack: ExitStack, *, silent: bool) -> None:
        self._server = stack.enter_context(socket.socket())
        self._server.bind(("127.0.0.1", 0))
        self._server.listen(0 if silent else 16)
        self.row = {
            "NodeManagerAddress": "127.0.0.1",
            "NodeManagerPort": self._server.getsockname()[1],
        }
        if silent:  # the kernel answers no more than the queue holds
            for _ in range(2):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(self._server.getsockname())

    def wake(self) -> None:
        self._server.listen(16)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Node]]:
    monkeypatch.setattr(reach, "CONNECT_SECONDS", 0.3)
    with ExitStack() as stack:
        found = {name: Node(stack, silent=name.startswith("silent")) for name in ("a", "silent")}
        rows: dict[str, Any] = {name: node.row for name, node in found.items()}
        monkeypatch.setattr(placement, "living_nodes", lambda: rows)
        yield found


def test_a_node_that_is_silent_once_is_silent_for_a_while(nodes: dict[str, Node]) -> None:
    look = Reach()
    assert look.reached() == {"a"}
    nodes["silent"].wake()
    assert look.reached() == {"a"}
    assert look.reached(["silent"]) == set()
    assert Reach().reached() == {"a", "silent"}


def test_after_a_while_it_is_asked_again(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "SILENT_SECONDS", 0.0)
    look = Reach()
    assert look.reached() == {"a"}
    nodes["silent"].wake()
    assert look.reached() == {"a", "silent"}


def test_what_ray_does_not_count_among_the_living_is_not_reached(nodes: dict[str, Node]) -> None:
    assert Reach().reached(["a", "dead"]) == {"a"}
