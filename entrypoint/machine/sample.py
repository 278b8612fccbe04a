"""The counters and states of this machine's parts at one moment. Differences say what goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from entrypoint.machine import infiniband
from entrypoint.machine.gpus.protocol import (
    Gpu,
    GpuError,
    LinkErrors,
    Links,
    MemoryErrors,
    Pcie,
    RemappedRows,
)
from entrypoint.machine.limits import read

SECTORS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""Beginnings of the names of block devices that are no disks, or lie on others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """What a GPU says of itself. None: it does not know."""

    memory_errors: MemoryErrors | None = None
    remapped_rows: RemappedRows | None = None
    held_down: tuple[str, ...] = ()
    """Why a fault of the machine holds its clocks down now."""
    pcie: Pcie | None = None
    pcie_replays: int | None = None
    links: Links | None = None
    link_errors: LinkErrors | None = None
    lost: str = ""
    """Why it does not answer; "" if it does."""


@dataclass(frozen=True, slots=True)
class PortSample:
    active: bool
    errors: Mapping[str, int]
    """Counter → its count since it was cleared; it stops at its largest value."""


@dataclass(frozen=True, slots=True)
class DiskSample:
    done: int
    """Reads and writes since the machine was booted."""
    milliseconds: int
    """That they took together, each from its request to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    at: float = field(default_factory=time.monotonic)
    gpus: Mapping[int, GpuSample] = field(default_factory=dict)
    ports: Mapping[str, PortSample] = field(default_factory=dict)
    disks: Mapping[str, DiskSample] = field(default_factory=dict)
    stolen: float = 0.0
    """Seconds of all CPUs that the hypervisor gave to others."""
    cpu: float = 0.0
    """Seconds of all CPUs."""


def taken(gpus: Sequence[Gpu | GpuError | None], sys: Path, proc: Path) -> Sample:
    """Return what the parts say now."""
    ports = infiniband.ports(sys)
    stolen, cpu = _cpu_seconds(read(proc / "stat"))
    return Sample(
        gpus={n: _of_gpu(gpu) for n, gpu in enumerate(gpus) if gpu is not None},
        ports={str(port): PortSample(port.active, port.errors()) for port in ports},
        disks=_disks(read(proc / "diskstats")),
        stolen=stolen,
        cpu=cpu,
    )


def _of_gpu(gpu: Gpu | GpuError) -> GpuSample:
    try:
        if isinstance(gpu, GpuError):
            raise gpu
        return GpuSample(
            memory_errors=gpu.memory_errors(),
            remapped_rows=gpu.remapped_rows(),
            held_down=(gpu.slowdowns() or ((), ()))[0],
            pcie=gpu.pcie(),
            pcie_replays=gpu.pcie_replays(),
            links=gpu.links(),
            link_errors=gpu.link_errors(),
        )
    except GpuError as error:
        return GpuSample(lost=str(error))


def _disks(text: str) -> dict[str, DiskSample]:
    """Return the whole disks of /proc/diskstats (admin-guide/iostats of the kernel)."""
    rows = [line.split() for line in text.splitlines()]
    found: dict[str, DiskSample] = {}
    for row in rows:
        if len(row) < 14 or row[2].startswith(SECTORS):
            continue
        if any(row[2].startswith(name) for name in found):  # a part of the disk before
            continue
        numbers = [int(text) for text in row[3:14]]
        found[row[2]] = DiskSample(numbers[0] + numbers[4], numbers[3] + numbers[7])
    return found


def _cpu_seconds(text: str) -> tuple[float, float]:
    """Return the stolen seconds, and those of all kinds, of the first line of /proc/stat."""
    words = text.partition("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu":
        return 0.0, 0.0
    ticks = [int(word) for word in words[1:9]]
    return ticks[7] / TICKS, sum(ticks) / TICKS


TICKS = 100
"""In a second: USER_HZ, which Linux shows to programs on each architecture."""
