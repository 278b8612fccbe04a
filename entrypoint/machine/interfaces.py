"""This machine's network interfaces, and how NCCL's variables choose among them."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from entrypoint.machine import nccl_names
from entrypoint.machine.limits import read

LOOPBACK = "772"
"""ARPHRD_LOOPBACK, as `/sys/class/net/*/type` says it."""
PASSED_OVER = "^docker,lo,virbr"
"""The interfaces that NCCL passes over by default, if none begins with `ib`."""


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    up: bool
    mtu: int
    addresses: tuple[str, ...]
    rdma: bool = False
    """Whether the interface belongs to an InfiniBand or RoCE device."""
    gbits: float = 0.0
    """Gbit/s of the line; 0 if unknown, or if the interface has no device."""


def addresses() -> dict[str, list[str]]:
    """Interface to its IPv4 and IPv6 addresses."""
    return {
        name: [entry.address.partition("%")[0] for entry in given if entry.family.name in FAMILIES]
        for name, given in psutil.net_if_addrs().items()
    }


FAMILIES = ("AF_INET", "AF_INET6")


def interfaces(sys: Path, known: Mapping[str, Sequence[str]]) -> list[Interface]:
    """All interfaces but the loopback, in the order of the kernel's numbers."""
    directory = sys / "class" / "net"
    named = [path for path in directory.glob("*") if path.is_dir()]  # bonding_masters is a file
    found = [path for path in named if read(path / "type") != LOOPBACK]
    found.sort(key=lambda path: int(read(path / "ifindex") or 0))
    return [
        Interface(
            path.name,
            read(path / "operstate") in ("up", "unknown"),
            int(read(path / "mtu") or 0),
            tuple(known.get(path.name, ())),
            (path / "device" / "infiniband").exists(),
            _gbits(path),
        )
        for path in found
    ]


def _gbits(path: Path) -> float:
    """Gbit/s of a real device; 0 for a container's virtual pair, which always says 10 Gbit/s."""
    text = read(path / "speed") if (path / "device").exists() else ""
    return int(text) / 1000 if text.isdigit() else 0.0


def holding(address: str, among: Sequence[Interface]) -> Interface | None:
    """The interface that has `address`; None if a loopback or another machine has it."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    for interface in among:
        if any(ipaddress.ip_address(own) == wanted for own in interface.addresses):
            return interface
    return None


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name fits NCCL's pattern: `eth`, `=eth0,eth1`, `^docker`, `^=docker0`."""
    return nccl_names.parsed(pattern).chooses


def usable(among: Sequence[Interface]) -> list[Interface]:
    """The interfaces that NCCL looks at: those that are up and have an address."""
    return [interface for interface in among if interface.up and interface.addresses]


def by_nccl(among: Sequence[Interface]) -> list[Interface]:
    """The interfaces that NCCL takes by default: InfiniBand's, else all but containers' bridges."""
    ready = usable(among)
    infiniband = [interface for interface in ready if interface.name.startswith("ib")]
    return infiniband or [interface for interface in ready if matcher(PASSED_OVER)(interface.name)]
