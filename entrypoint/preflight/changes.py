"""Pure: what has changed for the worse on a node, between two moments of a run.

A count says little: the fault may be years old. So counters are compared with what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from entrypoint.machine import xid
from entrypoint.machine.sample import GpuSample, PortSample, Sample

MOST_REPLAYS = 8
"""PCIe replays a minute: NVIDIA's limit (DCGM, dcgm_hardware_limits.h)."""
MOST_CRC = 100
"""CRC errors of NVLink a second that matter (DCGM, the same file). Of other errors, one matters."""
MOST_SYMBOL_ERRORS = 120 / 3600
"""A second: 10^-12 errors a bit, which InfiniBand's specification allows, at the SDR rate."""
MOST_DISCARDS = 100 / 60
"""A second: the threshold of infiniband-diags (ibcheckerrs) for discarded packets, in a minute."""
SLOW_DISK = 1.0
"""Seconds for a mean read or write. Disks and networks of storage take milliseconds."""
FEWEST_CALLS = 10
"""Reads and writes, from which their mean says something."""
MOST_STOLEN = 0.1
"""Share of the CPUs' time that the hypervisor may give to others."""


class HealthKind(StrEnum):
    GPU_LOST = "gpu-lost"
    XID = "xid"
    MEMORY_ERRORS = "memory-errors"
    REMAPPED_ROWS = "remapped-rows"
    HELD_DOWN = "clocks-held-down"
    PCIE_WIDTH = "pcie-width"
    PCIE_REPLAYS = "pcie-replays"
    GPU_LINK = "gpu-link"
    PORT_DOWN = "port-down"
    PORT_ERRORS = "port-errors"
    DISK = "disk-latency"
    STOLEN = "cpu-stolen"


@dataclass(frozen=True, slots=True)
class Change:
    kind: HealthKind
    part: str
    """`GPU 3`, `mlx5_0:1`, `nvme0n1`"""
    evidence: str
    """With units."""


def changes(before: Sample, now: Sample) -> list[Change]:
    """Return what is worse now, part by part."""
    seconds = max(now.at - before.at, 1e-3)
    found: list[Change] = []
    for index, gpu in now.gpus.items():
        of_gpu = _of_gpu(before.gpus.get(index, gpu), gpu, seconds)
        found += [Change(kind, f"GPU {index}", evidence) for kind, evidence in of_gpu]
    for name, port in now.ports.items():
        of_port = _of_port(before.ports.get(name, port), port, seconds)
        found += [Change(kind, name, evidence) for kind, evidence in of_port]
    for name, disk in now.disks.items():
        earlier = before.disks.get(name, disk)
        calls = disk.done - earlier.done
        mean = (disk.milliseconds - earlier.milliseconds) / 1000 / max(1, calls)
        if calls >= FEWEST_CALLS and mean > SLOW_DISK:
            evidence = f"a read or write took {mean:.1f} s, the mean of {calls}"
            found.append(Change(HealthKind.DISK, name, evidence))
    if (passed := now.cpu - before.cpu) > 0:
        share = (now.stolen - before.stolen) / passed
        if share > MOST_STOLEN:
            evidence = f"the hypervisor gave {share:.0%} of the CPUs' time to others"
            found.append(Change(HealthKind.STOLEN, "CPUs", evidence))
    return found


Told = Iterator[tuple[HealthKind, str]]


def _of_gpu(before: GpuSample, now: GpuSample, seconds: float) -> Told:
    if now.lost:
        if not before.lost:
            yield HealthKind.GPU_LOST, f"does not answer ({now.lost})"
        return
    if before.memory_errors and now.memory_errors:
        more = now.memory_errors.uncorrected - before.memory_errors.uncorrected
        if more > 0:
            yield HealthKind.MEMORY_ERRORS, f"{more} more uncorrected memory errors"
    if before.remapped_rows and now.remapped_rows:
        more = now.remapped_rows.uncorrected - before.remapped_rows.uncorrected
        pending = now.remapped_rows.pending and not before.remapped_rows.pending
        failed = now.remapped_rows.failed and not before.remapped_rows.failed
        if more > 0 or pending or failed:
            how = ", and one failed" if failed else ", and one waits for a reset" if pending else ""
            yield HealthKind.REMAPPED_ROWS, f"{max(0, more)} more rows remapped{how}"
    if lasting := [why for why in now.held_down if why in before.held_down]:
        yield HealthKind.HELD_DOWN, f"clocks are held down: {', '.join(lasting)}"
    if before.pcie and now.pcie and now.pcie.width < before.pcie.width:
        yield HealthKind.PCIE_WIDTH, f"PCIe has x{now.pcie.width}, and had x{before.pcie.width}"
    if before.pcie_replays is not None and now.pcie_replays is not None:
        rate = (now.pcie_replays - before.pcie_replays) / seconds * 60
        if rate > MOST_REPLAYS:
            yield HealthKind.PCIE_REPLAYS, f"{rate:.0f} PCIe replays a minute"
    yield from _of_links(before, now, seconds)


def _of_links(before: GpuSample, now: GpuSample, seconds: float) -> Told:
    if before.links and now.links and now.links.up < before.links.up:
        yield HealthKind.GPU_LINK, f"{now.links.up} links are up, and {before.links.up} were"
    if before.link_errors and now.link_errors:
        repaired = now.link_errors.repaired - before.link_errors.repaired
        crc = (now.link_errors.crc - before.link_errors.crc) / seconds
        if repaired > 0:
            yield HealthKind.GPU_LINK, f"{repaired} more replays and recoveries of links"
        elif crc > MOST_CRC:
            yield HealthKind.GPU_LINK, f"{crc:.0f} CRC errors of links a second"


def _of_port(before: PortSample, now: PortSample, seconds: float) -> Told:
    more = {
        name: count - before.errors.get(name, count)
        for name, count in now.errors.items()
        if count > before.errors.get(name, count)
    }
    if before.active and not now.active:
        yield HealthKind.PORT_DOWN, "the port is down"
    elif times := more.pop("link_downed", 0):
        yield HealthKind.PORT_DOWN, f"the link went down {times} times"
    limits = {"symbol_error": MOST_SYMBOL_ERRORS, "port_xmit_discards": MOST_DISCARDS}
    if rises := [
        f"{name} rose by {count}"
        for name, count in more.items()
        if name != "link_downed" and count / seconds > limits.get(name, 0.0)
    ]:
        yield HealthKind.PORT_ERRORS, f"{', '.join(rises)} in {seconds:.0f} s"


def of_kernel(messages: str, is_ours: Callable[[str], bool]) -> list[Change]:
    """Return what new lines of the kernel's log say: NVIDIA's Xid errors that need a repair."""
    errors = [error for line in messages.splitlines() if (error := xid.parse(line))]
    return [
        Change(HealthKind.XID, error.bus, f"Xid {error.number}: {error.action}")
        for error in errors
        if error.action not in xid.HARMLESS and is_ours(error.address)
    ]
