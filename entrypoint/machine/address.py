"""Finds this node's own address: the address at which the other nodes reach it.

It is the source address of a route, since `hostname -i` is wrong or empty on a machine with
several interfaces. A head's own name may lead to a loopback (Debian's `127.0.1.1`), which no other
machine can reach: a loopback is used only if the user set it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from contract.durations import counted
from contract.options import ConfigError, Fault
from entrypoint.config import role
from entrypoint.config.parsers import Tls
from entrypoint.config.settings import Settings
from entrypoint.machine import interfaces
from entrypoint.machine.interfaces import Interface
from entrypoint.net import dns, sockets
from entrypoint.net.wait import NotYetError

NOWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses reserved for documentation: only the default routes lead to them."""
LOOPBACK = "127.0.0.1"


def second_head(settings: Settings) -> Fault | None:
    """The fault of a node that is the head by default, and whose head is another machine."""
    named = role.head_named_to_a_default(settings)
    if named is None:
        return None
    try:
        if any(map(sockets.is_of_this_machine, dns.addresses(named.value))):
            return None
    except NotYetError:
        return None
    return Fault(
        named.source,
        settings.environ[named.source].strip(),
        "names another machine than this one, and RAY_WORKER is not set",
        "set RAY_WORKER=1 where this is a worker, RAY_WORKER=0 where it is the head",
    )


def bound(settings: Settings) -> str:
    """The address at which the control port of this head listens; "" is every address.

    Raises ConfigError if ROLLCALL_BIND is a name with no address, or with several.
    """
    name = role.bind_address(settings)
    try:
        found = dns.addresses(name) if name else [settings.bind or ""]
    except NotYetError as error:
        remedy = "give an address of this machine"
        raise ConfigError(
            [Fault("ROLLCALL_BIND", name, f"has no address: {error}", remedy)]
        ) from None
    if len(found) > 1:
        problem = f"is a name with several addresses ({', '.join(found)})"
        raise ConfigError([Fault("ROLLCALL_BIND", name, problem, "give one of them")])
    return found[0]


def exposure(settings: Settings, address: str) -> str:
    """Return who reaches the control port of the head at `address` in plain text; "" if few do."""
    if settings.tls_mode is not Tls.OFF or role.bind_address(settings):
        return ""
    alone = role.expected_workers(settings) == 0
    return (
        f"port {settings.control_port} listens on all interfaces, without TLS. To limit it: "
        f"ROLLCALL_BIND={LOOPBACK if alone else address}; to encrypt it: ROLLCALL_TLS=auto"
    )


def bind_fault(settings: Settings) -> Fault | None:
    """The fault of a ROLLCALL_BIND at which nobody, or no worker, would find this head."""
    try:
        address = bound(settings)
    except ConfigError as error:
        return error.faults[0]
    if not address:
        return None
    if not sockets.is_of_this_machine(address):
        own = [one for interface in this_machines() for one in interface.addresses]
        known = f"its addresses are {', '.join(own)}" if own else "it has no address of a network"
        remedy = "give one of them, or unset it to listen at all"
        problem = f"is not an address of this machine ({known})"
        return Fault("ROLLCALL_BIND", settings.bind, problem, remedy)
    if not role.bind_address(settings):
        return None
    named = role.head_address(settings)
    try:
        where = dns.addresses(named.value) if named else []
    except NotYetError:
        where = []
    if named and address not in where and any(map(sockets.is_of_this_machine, where)):
        problem = f"is another address than {named.source}={named.value}, where workers look"
        return Fault("ROLLCALL_BIND", settings.bind, problem, "give both the same address")
    workers = role.expected_workers(settings)
    if is_loopback(address) and workers and address not in where:
        many = counted(workers, "worker")
        problem = f"is reached by this machine alone, and the head waits for {many}"
        remedy = "give an address that they reach, or set EXPECTED_WORKERS=0. "
        remedy += f"For workers on this machine: set ROLLCALL_HEAD_ADDRESS={address}, too"
        return Fault("ROLLCALL_BIND", settings.bind, problem, remedy)
    return None


def worker_address(settings: Settings, head: str | None) -> str:
    """The address of this worker; `head`: the head's name or address, None while unknown.

    Without a known head the address is that of the default route.
    """
    if settings.node_address:
        return settings.node_address
    routed = source(head) if head else None
    return routed or default_route_address(this_machines()) or LOOPBACK


def own_head_address(
    settings: Settings, peer: str | None, everything: Sequence[Interface] | None = None
) -> str:
    """The address of this head; `peer`: the name or address that the other nodes use for it.

    A loopback is returned only if it is explicit, or if there is no other address. Raises as
    `bound` does.
    """
    if settings.node_address:
        return settings.node_address
    if role.bind_address(settings) and not is_loopback(only := bound(settings)):
        return only
    explicit = is_explicit(settings)
    named = [one for one in sources(peer or "") if explicit or not is_loopback(one.source)]
    if found := next((one for one in named if one.is_own), next(iter(named), None)):
        return found.source
    known = this_machines() if everything is None else everything
    return default_route_address(known) or LOOPBACK


def is_explicit(settings: Settings) -> bool:
    """Whether the user set the address, which may then be a loopback."""
    named = role.head_address(settings)
    return bool(settings.node_address) or (named is not None and is_loopback(named.value))


def default_route_address(everything: Sequence[Interface]) -> str | None:
    """The address of the default route; without a route, that of the first interface."""
    routed = (found for target in NOWHERE if (found := source(target)) and not is_loopback(found))
    return next(routed, None) or first_of(everything)


def first_of(everything: Sequence[Interface]) -> str | None:
    """An address of the first interface that is up: IPv4 before IPv6, containers' bridges last."""
    is_own = interfaces.matcher(interfaces.PASSED_OVER)
    up = sorted((found for found in everything if found.up), key=lambda up: not is_own(up.name))
    for interface in up:
        usable = [
            text for text in interface.addresses if not ipaddress.ip_address(text).is_link_local
        ]
        if usable:
            return min(usable, key=lambda text: ipaddress.ip_address(text).version)
    return None


def this_machines() -> list[Interface]:
    return interfaces.interfaces(Path("/sys"), interfaces.addresses())


@dataclass(frozen=True, slots=True)
class Route:
    target: str
    source: str
    """The address from which packets to `target` would go."""

    @property
    def is_own(self) -> bool:
        """Whether the target is this machine itself."""
        return self.target == self.source


def source(target: str) -> str | None:
    """The address from which packets to `target` would go; None if no route leads there.

    Of a name with several addresses, the first with a route counts.
    """
    return next((route.source for route in sources(target)), None)


def sources(target: str) -> Iterator[Route]:
    """Yield the routes to the addresses of a name, in the resolver's order."""
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM) if target else []
    except OSError:
        return
    for family, _, _, _, where in found:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            yield Route(str(where[0]), str(probe.getsockname()[0]))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
