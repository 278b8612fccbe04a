"""Ports of tests: reserved ones for servers to come, and one on which nobody listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from entrypoint.net.port_block import SLOT_PORTS, PortBlock

BLOCK_PORTS = SLOT_PORTS
"""In a `port_block`."""


@pytest.fixture
def free_port() -> Iterator[int]:
    """For a server that is told its port; no other process is given it during the test."""
    with PortBlock() as port:
        yield port


@pytest.fixture
def port_block() -> Iterator[int]:
    """The first of BLOCK_PORTS successive ports, reserved as `free_port` is."""
    with PortBlock(BLOCK_PORTS) as first:
        yield first


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Refuses connections during the whole test: it is bound, and nobody listens there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
