"""This machine's network interfaces, and how NCCL's variables choose among them."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from entrypoint.machine.limits import read

LOOPBACK = "772"
"""ARPHRD_LOOPBACK, as `/sys/class/net/*/type` says it."""
PASSED_OVER = "^docker,lo,virbr"
"""What NCCL leaves aside where no variable tells it, and no interface begins with `ib`."""


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    up: bool
    mtu: int
    addresses: tuple[str, ...]
    rdma: bool = False
    """Whether an InfiniBand or RoCE device is behind it."""
    gbits: float = 0.0
    """Gbit/s of the line; 0 where it does not tell, and for one with no device behind it."""


def addresses() -> dict[str, list[str]]:
    """Interface to its IPv4 and IPv6 addresses."""
    return {
        name: [one.address.partition("%")[0] for one in given if one.family.name in FAMILIES]
        for name, given in psutil.net_if_addrs().items()
    }


FAMILIES = ("AF_INET", "AF_INET6")


def interfaces(sys: Path, known: Mapping[str, Sequence[str]]) -> list[Interface]:
    """All but the loopback, in the order of the kernel's numbers."""
    directory = sys / "class" / "net"
    found = [path for path in directory.glob("*") if read(path / "type") != LOOPBACK]
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
    """A container's virtual pair says 10 Gbit/s whatever is below it."""
    text = read(path / "speed") if (path / "device").exists() else ""
    return int(text) / 1000 if text.isdigit() else 0.0


def holding(address: str, among: Sequence[Interface]) -> Interface | None:
    """The interface that has `address`; None for a loopback's or another machine's."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    for one in among:
        if any(ipaddress.ip_address(own) == wanted for own in one.addresses):
            return one
    return None


def matcher(pattern: str) -> Callable[[str], bool]:
    """NCCL's way to choose by name: `eth`, `=eth0,eth1`, `^docker`, `^=docker0`."""
    excludes = pattern.startswith("^")
    exact = pattern.removeprefix("^").startswith("=")
    names = pattern.removeprefix("^").removeprefix("=").split(",")

    def matches(name: str) -> bool:
        chosen = any(name == one if exact else name.startswith(one) for one in names if one)
        return chosen is not excludes

    return matches


def by_nccl(among: Sequence[Interface]) -> list[Interface]:
    """What NCCL takes by itself: those of InfiniBand, else all but containers' bridges."""
    ready = [one for one in among if one.up and one.addresses]
    infiniband = [one for one in ready if one.name.startswith("ib")]
    return infiniband or [one for one in ready if matcher(PASSED_OVER)(one.name)]
