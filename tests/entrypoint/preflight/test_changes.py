"""What gets worse on a node during a run: recorded answers of NVML, and files of the kernel."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.machine import sample
from entrypoint.machine.gpus import discover
from entrypoint.machine.sample import Sample
from entrypoint.machine.view import Machine
from entrypoint.preflight.changes import HealthKind, changes, of_kernel
from tests.support import machines

MINUTE = 60.0
PORT = "class/infiniband/mlx5_0/ports/1"
LINKS = [1] * 18


def looked(root: Path, at: float = 0.0, **answers: Any) -> Sample:
    """A machine of eight H100 as the watch samples it; `answers` are those of GPU 3."""
    dev, sys, proc = machines.nvidia_dev(root), root / "sys", root / "proc"
    nvml = machines.nvml("h100-good", {"3": answers})
    machine = Machine(dev=dev, sys=sys, proc=proc, nvml=lambda: nvml)
    with discover.opened(read_settings({}), machine) as gpus:
        assert not isinstance(gpus, str)
        return replace(sample.taken(gpus, sys, proc), at=at)


def told(before: Sample, after: Sample) -> list[tuple[HealthKind, str, str]]:
    return [(one.kind, one.part, one.evidence) for one in changes(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "kind", "evidence"),
    [
        (
            {"nvmlDeviceGetTotalEccErrors": {"1": 4, "0": 0}},
            {"nvmlDeviceGetTotalEccErrors": {"1": 6, "0": 0}},
            HealthKind.MEMORY_ERRORS,
            "2 more uncorrected memory errors",
        ),
        (
            {"nvmlDeviceGetRemappedRows": [0, 1, 0, 0]},
            {"nvmlDeviceGetRemappedRows": [0, 2, 1, 0]},
            HealthKind.REMAPPED_ROWS,
            "1 more rows remapped, and one waits for a reset",
        ),
        (
            {"nvmlDeviceGetCurrentClocksEventReasons": 0x48},
            {"nvmlDeviceGetCurrentClocksEventReasons": 0x40},
            HealthKind.HELD_DOWN,
            "clocks are held down: too hot (hardware)",
        ),
        (
            {},
            {"nvmlDeviceGetCurrPcieLinkWidth": 8},
            HealthKind.PCIE_WIDTH,
            "PCIe has x8, and had x16",
        ),
        (
            {"nvmlDeviceGetPcieReplayCounter": 100},
            {"nvmlDeviceGetPcieReplayCounter": 109},
            HealthKind.PCIE_REPLAYS,
            "9 PCIe replays a minute",
        ),
        (
            {},
            {"nvmlDeviceGetNvLinkState": [*LINKS[1:], 0]},
            HealthKind.GPU_LINK,
            "17 links are up, and 18 were",
        ),
        (
            {"nvmlDeviceGetNvLinkErrorCounter": 0},
            {"nvmlDeviceGetNvLinkErrorCounter": 1},
            HealthKind.GPU_LINK,
            "36 more replays and recoveries of links",
        ),
        (
            {},
            {"nvmlDeviceGetHandleByIndex": {"error": 15}},
            HealthKind.GPU_LOST,
            "does not answer (GPU is lost)",
        ),
    ],
)
def test_a_gpu_that_gets_worse_is_told_by_its_number(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], kind: HealthKind, evidence: str
) -> None:
    first, second = looked(tmp_path, **before), looked(tmp_path, MINUTE, **after)
    assert told(first, second) == [(kind, "GPU 3", evidence)]


@pytest.mark.parametrize(
    "same",
    [
        {"nvmlDeviceGetTotalEccErrors": {"1": 4, "0": 9}},
        {"nvmlDeviceGetRemappedRows": [0, 7, 1, 1]},
        {"nvmlDeviceGetPcieReplayCounter": 70_000},
        {"nvmlDeviceGetNvLinkErrorCounter": 5_000},
        {"nvmlDeviceGetNvLinkState": [*LINKS[1:], 0]},
        {"nvmlDeviceGetCurrPcieLinkWidth": 8},
        {"nvmlDeviceGetHandleByIndex": {"error": 15}},
        {"nvmlDeviceGetCurrentClocksEventReasons": 0x04},
    ],
)
def test_what_was_there_before_the_run_is_no_change(tmp_path: Path, same: dict[str, Any]) -> None:
    assert told(looked(tmp_path, **same), looked(tmp_path, MINUTE, **same)) == []


def test_replays_within_the_limit_and_clocks_held_down_for_a_moment_are_none(
    tmp_path: Path,
) -> None:
    first = looked(tmp_path, nvmlDeviceGetPcieReplayCounter=0)
    heated = {"nvmlDeviceGetCurrentClocksEventReasons": 0x40, "nvmlDeviceGetPcieReplayCounter": 8}
    assert told(first, looked(tmp_path, MINUTE, **heated)) == []


def port(root: Path, *, state: str = "4: ACTIVE", **counters: int) -> None:
    known = {"link_downed": 3, "symbol_error": 70, "port_rcv_errors": 2, "port_xmit_discards": 9}
    machines.write(
        root / "sys" / PORT,
        {"state": state, "phys_state": "5: LinkUp"}
        | {f"counters/{name}": count for name, count in (known | counters).items()},
    )


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({}, None),
        ({"link_downed": 5}, (HealthKind.PORT_DOWN, "the link went down 2 times")),
        ({"state": "1: DOWN"}, (HealthKind.PORT_DOWN, "the port is down")),
        ({"symbol_error": 72}, None),
        ({"symbol_error": 80}, (HealthKind.PORT_ERRORS, "symbol_error rose by 10 in 60 s")),
        ({"port_rcv_errors": 3}, (HealthKind.PORT_ERRORS, "port_rcv_errors rose by 1 in 60 s")),
        ({"port_xmit_discards": 100}, None),
    ],
)
def test_a_port_is_told_by_how_its_counters_rise(
    tmp_path: Path, after: dict[str, Any], expected: tuple[HealthKind, str] | None
) -> None:
    port(tmp_path)
    first = looked(tmp_path)
    port(tmp_path, **after)
    found = [(kind, why) for kind, part, why in told(first, looked(tmp_path, MINUTE))]
    assert found == ([expected] if expected else [])


def kernel(root: Path, reads: int, milliseconds: int, stolen: int) -> None:
    disk = f"259 0 nvme0n1 {reads} 0 9 {milliseconds} 0 0 0 0 0 0 0"
    part = f"259 1 nvme0n1p1 {reads} 0 9 {milliseconds} 0 0 0 0 0 0 0"
    stat = f"cpu 100 0 50 {1000 - stolen} 0 0 0 {stolen} 0 0"
    machines.write(root / "proc", {"diskstats": f"{disk}\n{part}", "stat": stat})


def test_a_slow_disk_and_stolen_cpus_are_told(tmp_path: Path) -> None:
    kernel(tmp_path, 0, 0, 0)
    first = looked(tmp_path)
    machines.write(
        tmp_path / "proc",
        {
            "diskstats": "259 0 nvme0n1 20 0 9 50000 0 0 0 0 0 0 0\n"
            "259 1 nvme0n1p1 20 0 9 50000 0 0 0 0 0 0 0",
            "stat": "cpu 100 0 50 1700 0 0 0 300 0 0",
        },
    )
    assert told(first, looked(tmp_path, MINUTE)) == [
        (HealthKind.DISK, "nvme0n1", "a read or write took 2.5 s, the mean of 20"),
        (HealthKind.STOLEN, "CPUs", "the hypervisor gave 30% of the CPUs' time to others"),
    ]


def test_this_machines_own_files_can_be_sampled() -> None:
    first = sample.taken([], Path("/sys"), Path("/proc"))
    assert first.cpu > 0
    if os.path.exists("/proc/diskstats") and Path("/proc/diskstats").read_text():  # noqa: PTH110
        assert all(disk.done >= 0 for disk in first.disks.values())
    assert changes(first, first) == []


def test_xids_that_need_a_repair_are_told_and_those_of_programs_are_not() -> None:
    line = "4,1234,5678,-;NVRM: Xid (PCI:0000:1b:00): {}, pid=1, name=python"
    messages = "\n".join(line.format(number) for number in (13, 79, 43))
    found = of_kernel(messages, lambda address: address == "0000:1b:00")
    assert [(one.part, one.evidence) for one in found] == [
        ("0000:1b:00", "Xid 79: reboot the host")
    ]
    assert of_kernel(messages, lambda address: False) == []
