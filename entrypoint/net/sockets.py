"""Addresses as text, and the socket that the head listens on."""

from __future__ import annotations

import errno
import ipaddress
import socket


def told_by(source: str, address: str) -> str:
    """`source`, where it says something of `address`: not between nodes of one machine."""
    try:
        seen, said = ipaddress.ip_address(source), ipaddress.ip_address(address)
    except ValueError:
        return ""
    seen = getattr(seen, "ipv4_mapped", None) or seen
    same_kind = seen.version == said.version
    return "" if seen.is_loopback or said.is_loopback or not same_kind else str(seen)


def host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    try:
        is_ipv6 = ipaddress.ip_address(host).version == 6
    except ValueError:
        is_ipv6 = False
    return f"[{host}]:{port}" if is_ipv6 else f"{host}:{port}"


def listen(port: int) -> socket.socket:
    """All interfaces, IPv6 too where the machine has it. Raises OSError where the port is taken."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return socket.create_server(("", port), backlog=1024)
