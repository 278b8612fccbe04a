"""Addresses as text, the socket that the head listens on, and connections to a port."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence

from entrypoint.net.wait import NotYetError

NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Numbers of the errors of a machine without IPv6."""


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


def is_of_this_machine(address: str) -> bool:
    """Whether this machine has the address, or might have it."""
    family = socket.AF_INET6 if is_ipv6(address) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if is_ipv6(host) else f"{host}:{port}"


def is_ipv6(host: str) -> bool:
    """Whether `host` is an IPv6 address; of a name this is False."""
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def listen(port: int, address: str = "") -> socket.socket:
    """Listen at one address, or on all interfaces, with IPv6 if the machine has it.

    Raises OSError if the port is taken.
    """
    if address not in ("", "::"):
        family = socket.AF_INET6 if is_ipv6(address) else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=1024)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
        except OSError as error:
            if error.errno not in NO_IPV6:
                raise
    return socket.create_server(("", port), backlog=1024)


def answering(hosts: Sequence[str], port: int, *, timeout: float = 3.0) -> str:
    """Return the first of the hosts at which a server accepts TCP connections.

    Raises NotYetError, which says of each why not.
    """
    answers = []
    for host in hosts:
        try:
            connect(host, port, timeout=timeout)
        except NotYetError as error:
            answers.append(str(error))
        else:
            return host
    raise NotYetError("; ".join(answers))


def connect(host: str, port: int, *, timeout: float = 3.0) -> None:
    """Raise NotYetError unless a server accepts TCP connections there."""
    try:
        socket.create_connection((host, port), timeout=timeout).close()
    except OSError as error:
        raise NotYetError(f"{host} port {port}: {error.strerror or 'timed out'}") from None
