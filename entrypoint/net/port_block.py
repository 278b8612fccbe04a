"""Reserves successive TCP ports on this machine for servers that take a port number.

The reservation is a lock, not a bound port: the server itself binds later. A lock is an abstract
Unix socket. The kernel frees it with its process, and counts it, as it does ports, by network
namespace. Only processes that reserve here respect it. The worker ports of a node that runs here
count as taken, though most are free at any moment. All lie below Linux's default range for
connections and for servers that ask for any port, so that others seldom take them.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Sequence

from entrypoint.net import node_claims
from entrypoint.net.sockets import NO_IPV6, is_ipv6

FIRST, END = 20_000, 32_750
"""Ray's own defaults end below, and `net.ipv4.ip_local_port_range` begins above (32768)."""
LOCKS = "rollcall-ports"
SLOT_PORTS = 50
"""Ports for each lock."""
SINGLE_SLOTS = 100
"""Slots at the upper end for short blocks; the rest is left for long blocks."""


class PortBlock:
    """A block of ports that begins at `first`, reserved until `close`."""

    def __init__(self, count: int = 1) -> None:
        """Raises OSError if this machine has no `count` successive free ports."""
        length = -(-count // SLOT_PORTS) * SLOT_PORTS
        claims = node_claims.all_claims()
        for first in _candidates(length):
            if any(one.first < first + length and first <= one.last for one in claims):
                continue
            self._locks = _locked(range(first, first + length, SLOT_PORTS))
            if self._locks and all(why_not(port) is None for port in range(first, first + count)):
                self.first = first
                return
            self.close()
        ports = f"no {count} successive free ports between {FIRST} and {END - 1}"
        raise OSError(f"{ports}: end another demo or node on this machine")

    def __enter__(self) -> int:
        return self.first

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for lock in self._locks:
            lock.close()


def why_not(port: int, address: str = "") -> OSError | None:
    """Why this process cannot listen on `port`, with IPv4 and IPv6; None if it can.

    `address`: the one address that counts; "": all.
    """
    if address not in ("", "::"):
        return _why_not(socket.AF_INET6 if is_ipv6(address) else socket.AF_INET, port, address)
    return _why_not(socket.AF_INET, port) or _why_not(socket.AF_INET6, port)


def _why_not(family: socket.AddressFamily, port: int, address: str = "") -> OSError | None:
    try:
        with socket.socket(family) as listener:
            # As servers do: a connection that is still closing does not keep the port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address, port))
    except OSError as error:
        return None if error.errno in NO_IPV6 else error
    return None


def _candidates(length: int) -> Iterable[int]:
    """First ports of blocks. Short blocks come in random order, so that a freed block rests."""
    if length > SLOT_PORTS:
        return range(FIRST, END - length + 1, SLOT_PORTS)
    slots = range(END - SLOT_PORTS, FIRST - 1, -SLOT_PORTS)
    short, rest = slots[:SINGLE_SLOTS], slots[SINGLE_SLOTS:]
    return [*random.SystemRandom().sample(short, len(short)), *rest]


def _locked(slots: Sequence[int]) -> list[socket.socket]:
    """The locks of these slots, or none if another process holds one of them."""
    locks: list[socket.socket] = []
    for first in slots:
        lock = socket.socket(socket.AF_UNIX)
        locks.append(lock)
        try:
            lock.bind(f"\0{LOCKS}-{first}")
        except OSError:
            for held in locks:
                held.close()
            return []
    return locks
