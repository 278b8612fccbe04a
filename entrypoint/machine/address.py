"""This node's own address: the one at which the other nodes reach it.

It is the source address of a route, since `hostname -i` is wrong or empty on a machine with
several interfaces. A head's own name may lead to a loopback (Debian's `127.0.1.1`), where no other
machine finds it: that is taken only where somebody wrote it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path

from entrypoint.config.role import head_address
from entrypoint.config.settings import Settings
from entrypoint.machine import interfaces
from entrypoint.machine.interfaces import Interface

NOWHERE = ("192.0.2.1", "2001:db8::1")
"""Reserved for documentation, so that no packet goes there: the default routes lead to them."""
LOOPBACK = "127.0.0.1"


def of_worker(settings: Settings, head: str | None) -> str:
    """`head`: its name or address; None while it is not known, then the default route counts."""
    if settings.node_address:
        return settings.node_address
    return (source(head) if head else None) or by_itself(this_machines()) or LOOPBACK


def of_head(
    settings: Settings, peer: str | None, everything: Sequence[Interface] | None = None
) -> str:
    """`peer`: what the other nodes call this one, or its address; a loopback where there is no
    other address, or somebody wrote one."""
    if settings.node_address:
        return settings.node_address
    found = source(peer) if peer else None
    if found and (by_hand(settings) or not is_loopback(found)):
        return found
    return by_itself(this_machines() if everything is None else everything) or LOOPBACK


def by_hand(settings: Settings) -> bool:
    """Whether a loopback, as of several nodes on one machine, is what the user asked for."""
    named = head_address(settings)
    return bool(settings.node_address) or (named is not None and is_loopback(named.value))


def by_itself(everything: Sequence[Interface]) -> str | None:
    """Of the default route, of IPv4 or IPv6; where there is none, of the first interface."""
    routed = (found for target in NOWHERE if (found := source(target)) and not is_loopback(found))
    return next(routed, None) or first_of(everything)


def first_of(everything: Sequence[Interface]) -> str | None:
    """An address of the first interface that is up, IPv4 before IPv6, containers' bridges last."""
    own = interfaces.matcher(interfaces.PASSED_OVER)
    ready = sorted((one for one in everything if one.up), key=lambda one: not own(one.name))
    for one in ready:
        usable = [text for text in one.addresses if not ipaddress.ip_address(text).is_link_local]
        if usable:
            return min(usable, key=lambda text: ipaddress.ip_address(text).version)
    return None


def this_machines() -> list[Interface]:
    return interfaces.interfaces(Path("/sys"), interfaces.addresses())


def source(target: str) -> str | None:
    """The address from which packets to `target` would go; None where there is no way."""
    try:
        family, _, _, _, where = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
