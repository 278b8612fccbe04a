"""InfiniBand and RoCE ports as the kernel shows them below `/sys/class/infiniband`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contract.options import ParseError, boolean
from entrypoint.machine import nccl_names
from entrypoint.machine.limits import read

EMPTY_GID = re.compile(r"^(?:0000:){7}0000$|^fe80:(?:0000:){6}0000$")
ROCE_V2 = "RoCE v2"
ERRORS = (
    "link_downed",
    "symbol_error",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
)


@dataclass(frozen=True, slots=True)
class Port:
    device: str
    number: int
    path: Path

    def __str__(self) -> str:
        return f"{self.device}:{self.number}"

    @property
    def state(self) -> str:
        """ACTIVE, DOWN, INIT, ARMED"""
        return read(self.path / "state").partition(": ")[2]

    @property
    def physical(self) -> str:
        """LinkUp, Polling, Disabled, Sleep"""
        return read(self.path / "phys_state").partition(": ")[2]

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE" and self.physical == "LinkUp"

    @property
    def layer(self) -> str:
        """InfiniBand, or Ethernet: RoCE."""
        return read(self.path / "link_layer")

    @property
    def rate(self) -> float:
        """Gbit/s."""
        text = read(self.path / "rate").partition(" ")[0]
        return float(text) if text else 0.0

    def gid(self, index: int) -> str | None:
        """The address at `index`; None if there is none."""
        text = read(self.path / "gids" / str(index))
        return None if not text or EMPTY_GID.match(text) else text

    def gid_type(self, index: int) -> str:
        return read(self.path / "gid_attrs" / "types" / str(index))

    def roce_v2(self) -> list[int]:
        """Indices of RoCE v2 addresses, those of IPv4 first."""
        indices = sorted(int(path.name) for path in self.path.glob("gids/*") if path.name.isdigit())
        usable = [index for index in indices if self.gid(index) and self.gid_type(index) == ROCE_V2]
        return sorted(usable, key=lambda index: ":ffff:" not in (self.gid(index) or ""))

    def errors(self) -> dict[str, int]:
        texts = {name: read(self.path / "counters" / name) for name in ERRORS}
        return {name: int(text) for name, text in texts.items() if text.isdigit()}

    def mtus(self) -> list[int]:
        """The MTUs of the network interfaces of a RoCE device, in bytes."""
        texts = [read(path) for path in sorted(self.path.glob("../../device/net/*/mtu"))]
        return [int(text) for text in texts if text.isdigit()]


def ports(sys: Path) -> list[Port]:
    found = (sys / "class" / "infiniband").glob("*/ports/*")
    return sorted(
        (Port(path.parent.parent.name, int(path.name), path) for path in found),
        key=lambda port: (port.device, port.number),
    )


def selected(pattern: str, among: list[Port]) -> list[Port]:
    """The ports that NCCL_IB_HCA selects.

    `mlx5` selects by prefix, `=mlx5_0:1,mlx5_1` exactly, `^mlx5_3` all others, no name every port.
    """
    names = nccl_names.parsed(pattern)
    return [port for port in among if names.chooses(port.device, port.number)]


def named(environ: Mapping[str, str]) -> bool:
    """Whether the user named the ports for training.

    The machine's other ports may serve storage or management, and differ.
    """
    return bool(environ.get("NCCL_IB_HCA"))


def disabled(environ: Mapping[str, str]) -> bool:
    """Whether NCCL_IB_DISABLE leaves all ports unused."""
    raw = environ.get("NCCL_IB_DISABLE", "").strip()
    try:
        return bool(raw) and boolean(raw)
    except ParseError:
        return False


def verbs(port: Port, sys: Path, dev: Path) -> list[Path]:
    """The device files by which a program uses `port`; all such files if /sys names none."""
    own = [
        dev / "infiniband" / path.parent.name
        for path in sorted((sys / "class" / "infiniband_verbs").glob("uverbs*/ibdev"))
        if read(path) == port.device
    ]
    return own or sorted((dev / "infiniband").glob("uverbs*"))


def used_gbits(sys: Path, environ: Mapping[str, str]) -> float:
    """Gbit/s of all active ports that NCCL takes, together; 0 if it takes none."""
    if environ.get("NCCL_IB_DISABLE", "").strip() not in ("", "0"):
        return 0.0
    chosen = selected(environ.get("NCCL_IB_HCA", ""), ports(sys))
    return sum(port.rate for port in chosen if port.active)
