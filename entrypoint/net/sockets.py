"""Addresses as text, and the socket that the head listens on."""

from __future__ import annotations

import errno
import ipaddress
import socket


def peer_address(source: str, address: str) -> str:
    """The `source` of a connection, to be compared with the node's own `address`.

    It is "" if the two cannot be compared: a loopback, or IPv4 beside IPv6.
    """
    try:
        seen, own = ipaddress.ip_address(source), ipaddress.ip_address(address)
    except ValueError:
        return ""
    seen = getattr(seen, "ipv4_mapped", None) or seen
    comparable = seen.version == own.version and not seen.is_loopback and not own.is_loopback
    return str(seen) if comparable else ""


def host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    try:
        is_ipv6 = ipaddress.ip_address(host).version == 6
    except ValueError:
        is_ipv6 = False
    return f"[{host}]:{port}" if is_ipv6 else f"{host}:{port}"


def listen(port: int) -> socket.socket:
    """Listen on all interfaces, with IPv6 if the machine has it.

    Raises OSError if the port is taken.
    """
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return socket.create_server(("", port), backlog=1024)
