"""Reads AMD's GPUs through amdsmi if it is installed, else from the driver's files.

The files are the amdgpu driver's own, as the kernel's documentation describes them (RAS counters,
XGMI hive, compute partition, hwmon).
"""

from __future__ import annotations

import importlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from entrypoint.machine.gpus.protocol import (
    Gpu,
    GpuError,
    LinkErrors,
    Links,
    Memory,
    MemoryErrors,
    Pcie,
    RemappedRows,
    Temperature,
)
from entrypoint.machine.limits import GIB, read

T = TypeVar("T")

AmdSmi = Any
"""AMD's management library: ROCm's package `amdsmi`, or a record of its answers.

Every call raises AmdSmiException."""
Handle = Any
"""The library's handle of a device."""

NOT_INIT = 32
"""AMDSMI_STATUS_NOT_INIT, as amdsmi.h numbers it."""

VENDOR = "0x1002"
VRAM_TOTAL = "mem_info_vram_total"
MOST_SET_ASIDE = 4 * GIB
"""Bytes of their own that integrated graphics have at most, unless somebody gave them more."""
WHOLE = "SPX"
"""The compute partition in which a GPU is one device."""
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""GT/s of a PCIe lane to its generation."""
DEVICES = {
    "0x738c": "AMD Instinct MI100",
    "0x7408": "AMD Instinct MI250X",
    "0x740c": "AMD Instinct MI250X",
    "0x740f": "AMD Instinct MI210",
    "0x74a1": "AMD Instinct MI300X",
    "0x74a5": "AMD Instinct MI325X",
}
"""PCI device ids, for boards that do not tell their product's name."""


def load() -> AmdSmi | None:
    """The package; None if it, or the library that it loads, is not installed."""
    try:
        return importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError, AttributeError):  # it looks for ROCm as it is imported
        return None


@dataclass(frozen=True, slots=True)
class SysfsGpu:
    index: int
    device: Path
    """`/sys/class/drm/renderD…/device`."""
    kfd: Path
    """`/sys/class/kfd/kfd`, if it lists the processes that compute."""

    def model(self) -> str:
        return read(self.device / "product_name") or DEVICES.get(
            read(self.device / "device"), "unknown AMD GPU"
        )

    def ids(self) -> tuple[str, ...]:
        return _ids(read(self.device / "unique_id"), self.partition())

    def recovery_action(self) -> str | None:
        return None

    def memory_errors(self) -> MemoryErrors | None:
        """All blocks together: memory, compute units, DMA engines, XGMI."""
        counts = [read(path) for path in sorted(self.device.glob("ras/*_err_count"))]
        found = [(_after("ue", count), _after("ce", count)) for count in counts]
        if not found:
            return None
        return MemoryErrors(sum(ue for ue, _ in found), sum(ce for _, ce in found))

    def remapped_rows(self) -> RemappedRows | None:
        return None

    def slowdowns(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        return None

    def temperature(self) -> Temperature | None:
        """The hottest spot's (`junction`)."""
        for label in self.device.glob("hwmon/hwmon*/temp*_label"):
            if read(label) == "junction":
                stem = label.name.removesuffix("label")
                now = read(label.with_name(f"{stem}input"))
                critical = read(label.with_name(f"{stem}crit"))
                if now.isdigit():
                    limit = int(critical) / 1000 if critical.isdigit() else None
                    return Temperature(int(now) / 1000, limit)
        return None

    def pcie(self) -> Pcie | None:
        width, max_width = (read(self.device / f"{kind}_link_width") for kind in ("current", "max"))
        if not (width.isdigit() and max_width.isdigit()):
            return None
        speed = read(self.device / "max_link_speed").partition(" ")[0]
        return Pcie(int(width), int(max_width), GENERATIONS.get(speed))

    def links(self) -> Links | None:
        """One XGMI link to each other GPU of the hive."""
        peers = len(list(self.device.glob("xgmi_hive_info/node*")))
        return Links(peers - 1, 0) if peers > 1 else None

    def link_errors(self) -> LinkErrors | None:
        """XGMI's RAS counters are among those of `memory_errors`."""
        return None

    def pcie_replays(self) -> int | None:
        count = read(self.device / "pcie_replay_count")
        return int(count) if count.isdigit() else None

    def partition(self) -> str | None:
        mode = read(self.device / "current_compute_partition")
        return None if not mode else mode.replace(WHOLE, "")

    def memory(self) -> Memory | None:
        used, total = read(self.device / "mem_info_vram_used"), read(self.device / VRAM_TOTAL)
        return Memory(int(used), int(total)) if used.isdigit() and total.isdigit() else None

    def busy(self) -> float | None:
        percent = read(self.device / "gpu_busy_percent")
        return int(percent) / 100 if percent.isdigit() else None

    def clock(self) -> int | None:
        hertz = next((read(path) for path in self.device.glob("hwmon/hwmon*/freq1_input")), "")
        return int(hertz) // 10**6 if hertz.isdigit() else None

    def power(self) -> float | None:
        """`power1_average` of older GPUs, `power1_input` of newer ones, in microwatts."""
        kinds = ("power1_input", "power1_average")
        told = [read(path) for kind in kinds for path in self.device.glob(f"hwmon/hwmon*/{kind}")]
        return next((int(text) / 10**6 for text in told if text.isdigit()), None)

    def processes(self) -> tuple[int, ...]:
        return computing(self.kfd)


@dataclass(frozen=True, slots=True)
class AmdSmiGpu:
    smi: AmdSmi
    index: int
    handle: Handle
    kfd: Path

    def model(self) -> str:
        row = self._ask(self.smi.amdsmi_get_gpu_asic_info, self.handle)
        return str(row["market_name"]) if row else "unknown AMD GPU"

    def ids(self) -> tuple[str, ...]:
        return _ids(self._ask(self.smi.amdsmi_get_gpu_device_uuid, self.handle), self.partition())

    def recovery_action(self) -> str | None:
        return None

    def memory_errors(self) -> MemoryErrors | None:
        row = self._ask(self.smi.amdsmi_get_gpu_total_ecc_count, self.handle)
        if row is None:
            return None
        return MemoryErrors(row["uncorrectable_count"], row["correctable_count"])

    def remapped_rows(self) -> RemappedRows | None:
        return None

    def slowdowns(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        return None

    def temperature(self) -> Temperature | None:
        kinds, metrics = self.smi.AmdSmiTemperatureType, self.smi.AmdSmiTemperatureMetric
        now, critical = (
            self._ask(self.smi.amdsmi_get_temp_metric, self.handle, kinds.HOTSPOT, metric)
            for metric in (metrics.CURRENT, metrics.CRITICAL)
        )
        return None if now is None else Temperature(now, critical)

    def pcie(self) -> Pcie | None:
        row = self._ask(self.smi.amdsmi_get_pcie_info, self.handle)
        if row is None:
            return None
        can, has = row["pcie_static"], row["pcie_metric"]
        numbers = (has["pcie_width"], can["max_pcie_width"], can["pcie_interface_version"])
        if not all(isinstance(number, int) for number in numbers):  # "N/A" if unknown
            return None
        return Pcie(*numbers)

    def links(self) -> Links | None:
        row = self._ask(self.smi.amdsmi_get_gpu_xgmi_link_status, self.handle)
        if row is None:
            return None
        up, down = (row["status"].count(state) for state in ("U", "D"))
        return Links(up, down) if up + down else None

    def link_errors(self) -> LinkErrors | None:
        """XGMI's RAS counters are among those of `memory_errors`."""
        return None

    def pcie_replays(self) -> int | None:
        row = self._ask(self.smi.amdsmi_get_pcie_info, self.handle)
        count = row["pcie_metric"].get("pcie_replay_count") if row else None
        return count if isinstance(count, int) else None

    def partition(self) -> str | None:
        mode = self._ask(self.smi.amdsmi_get_gpu_compute_partition, self.handle)
        return None if mode is None else mode.replace(WHOLE, "")

    def memory(self) -> Memory | None:
        smi, kind = self.smi, self.smi.AmdSmiMemoryType.VRAM
        used = self._ask(smi.amdsmi_get_gpu_memory_usage, self.handle, kind)
        total = self._ask(smi.amdsmi_get_gpu_memory_total, self.handle, kind)
        return None if used is None or total is None else Memory(used, total)

    def busy(self) -> float | None:
        row = self._ask(self.smi.amdsmi_get_gpu_activity, self.handle)
        percent = row and row["gfx_activity"]  # "N/A" if unknown
        return percent / 100 if isinstance(percent, int) else None

    def clock(self) -> int | None:
        row = self._ask(self.smi.amdsmi_get_clock_info, self.handle, self.smi.AmdSmiClkType.GFX)
        return _known(row.get("clk")) if row else None

    def power(self) -> float | None:
        """Of MI300 now, of older ones in the mean of a moment."""
        row = self._ask(self.smi.amdsmi_get_power_info, self.handle) or {}
        kinds = ("current_socket_power", "average_socket_power")
        return next((n for kind in kinds if (n := _known(row.get(kind))) is not None), None)

    def processes(self) -> tuple[int, ...]:
        return computing(self.kfd)

    def _ask(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """amdsmi's answer; None if it has none: most calls do not support partitions or guests.

        Raises GpuError if the library is not started.
        """
        try:
            return call(*arguments)
        except self.smi.AmdSmiException as error:
            if getattr(error, "err_code", None) == NOT_INIT:
                raise GpuError(f"amdsmi is not started: {error}") from None
            return None


_users: Counter[AmdSmi] = Counter()
_users_change = threading.Lock()
"""The library keeps one flag, which any shut-down clears under the other checks' threads."""


@contextmanager
def opened(library: AmdSmi, kfd: Path) -> Iterator[list[Gpu]]:
    """The GPUs that amdsmi shows; its first user starts it, and its last one shuts it down.

    Raises GpuError if the library does not start, or shows no GPU.
    """
    with _users_change:
        if not _users[library]:
            try:
                library.amdsmi_init()
            except library.AmdSmiException as error:
                raise GpuError(f"amdsmi does not start: {error}") from None
        _users[library] += 1
    try:
        yield [AmdSmiGpu(library, *numbered, kfd) for numbered in enumerate(_handles(library))]
    finally:
        with _users_change:
            _users[library] -= 1
            if not _users[library]:
                library.amdsmi_shut_down()


def _handles(library: AmdSmi) -> list[Handle]:
    try:
        handles: list[Handle] = library.amdsmi_get_processor_handles()
        return handles
    except library.AmdSmiException as error:
        raise GpuError(f"amdsmi shows no GPUs: {error}") from None


def in_sysfs(dev: Path, sys: Path) -> list[Gpu]:
    """The GPUs whose render nodes this container has."""
    nodes = render_nodes(dev, sys)
    kfd = sys / "class" / "kfd" / "kfd"
    return [SysfsGpu(index, _device(sys, node), kfd) for index, node in enumerate(nodes)]


def render_nodes(dev: Path, sys: Path) -> list[Path]:
    """The device files of AMD's GPUs, in the order of their numbers.

    A file without a vendor counts: the parts of a divided GPU have none, except the first.
    """
    nodes = sorted(dev.glob("dri/renderD*"), key=lambda path: _number(path.name))
    return [node for node in nodes if read(_device(sys, node) / "vendor") in (VENDOR, "")]


def integrated(dev: Path, sys: Path) -> set[int]:
    """The numbers of the GPUs that are the integrated graphics of a processor.

    The firmware sets their own memory aside. An MI300A, which is not a graphics card, has none: the
    driver says 0. KFD's topology gives all of them nodes without processor cores.
    """
    totals = [read(_device(sys, node) / VRAM_TOTAL) for node in render_nodes(dev, sys)]
    own = [int(total) if total.isdigit() else 0 for total in totals]
    return {number for number, size in enumerate(own) if 0 < size <= MOST_SET_ASIDE}


def _device(sys: Path, node: Path) -> Path:
    return sys / "class" / "drm" / node.name / "device"


def computing(kfd: Path) -> tuple[int, ...]:
    return tuple(sorted(int(path.name) for path in kfd.glob("proc/*") if path.name.isdigit()))


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name) or 0)


def _after(name: str, counts: str) -> int:
    """The number after `name` in a file such as `ue: 0\\nce: 2`."""
    found = re.search(rf"^{name}:\s*(\d+)", counts, re.MULTILINE)
    return int(found[1]) if found else 0


def _ids(of_whole: str | None, partition: str | None) -> tuple[str, ...]:
    """The parts of a divided GPU may have one id between them, which then says nothing."""
    return (of_whole,) if of_whole and not partition else ()


def _known(value: Any) -> int | None:
    """Return a number of amdsmi: it says "N/A", or the largest one of 32 bits, if it has none."""
    return value if isinstance(value, int) and value < 2**32 - 1 else None
