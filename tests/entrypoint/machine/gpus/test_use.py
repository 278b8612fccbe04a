"""The use of a node's GPUs, from what the makers' libraries and drivers answer."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.machine.gpus import use
from entrypoint.machine.gpus.use import Condition, GpuUse
from entrypoint.machine.view import Machine
from tests.support import machines
from tests.support.waiting import eventually

GIB = 1024
BUSY = {
    "nvmlDeviceGetUtilizationRates": {"gpu": 93, "memory": 40},
    "nvmlDeviceGetMemoryInfo": {"used": 61 << 30, "total": 80 << 30},
}


RECORDED = (GpuUse(0.0, 0, 143771), GpuUse(0.67, 29664, 143771))
"""What `nvidia-smi`, which rounds up, printed on the machine of h200-idle and h200-busy."""


def nvidia(root: Path, devices: dict[str, Any] | None = None, **changes: Any) -> Machine:
    library = machines.nvml("h100-good", devices, **changes)
    dev = machines.nvidia_dev(root)
    return Machine(dev=dev, nvml=lambda: library, amdsmi=lambda: None)


def told(machine: Machine, environ: Mapping[str, str] = {}) -> Sequence[GpuUse]:
    """What the node tells first, without the condition of its GPUs."""
    return [replace(one, condition=Condition()) for one in whole(machine, environ)]


def whole(machine: Machine, environ: Mapping[str, str] = {}) -> Sequence[GpuUse]:
    """What the node tells first."""
    heard: list[Sequence[GpuUse]] = []
    with use.watching(read_settings(environ), heard.append, machine):
        eventually(lambda: bool(heard))
    return heard[0]


def test_each_gpu_that_the_node_uses_tells_its_use_and_its_memory(tmp_path: Path) -> None:
    found = told(nvidia(tmp_path, {"1": BUSY}), {"ROLLCALL_NUM_GPUS": "2"})
    assert list(found) == [GpuUse(0.0, 1, 81559), GpuUse(0.93, 61 * GIB, 80 * GIB)]


@pytest.mark.parametrize(
    ("state", "shown"), list(zip(["h200-idle", "h200-busy"], RECORDED, strict=True))
)
def test_a_recorded_gpu_has_the_use_and_memory_that_nvidia_smi_showed(
    tmp_path: Path, state: str, shown: GpuUse
) -> None:
    dev = machines.nvidia_dev(tmp_path, 1)
    machine = Machine(dev=dev, nvml=lambda: machines.nvml(state), amdsmi=lambda: None)
    assert list(told(machine)) == [shown]


def test_a_gpu_that_is_lost_or_does_not_know_its_use_hides_no_other(tmp_path: Path) -> None:
    lost = {"nvmlDeviceGetUtilizationRates": {"error": 15}}
    unknown = {**BUSY, "nvmlDeviceGetUtilizationRates": {"error": 3}}
    found = told(nvidia(tmp_path, {"0": lost, "1": unknown, "2": BUSY}))
    assert len(found) == 7
    assert found[:2] == [GpuUse(None, 61 * GIB, 80 * GIB), GpuUse(0.93, 61 * GIB, 80 * GIB)]


def test_of_parts_of_a_gpu_the_memory_alone_is_known(tmp_path: Path) -> None:
    mig = {"CUDA_VISIBLE_DEVICES": "MIG-5f1a8c9e-0000-0000-0000-000000000000"}
    assert [one.busy for one in told(nvidia(tmp_path), mig)] == [None]


@pytest.mark.parametrize("library", [lambda: machines.RecordedAmdSmi(), lambda: None])
def test_amds_gpus_tell_it_through_the_library_and_the_drivers_files(
    tmp_path: Path, library: Any
) -> None:
    smi = library()
    machine = Machine(
        dev=machines.amd_dev(tmp_path),
        sys=machines.amd_sys(tmp_path),
        amdsmi=lambda: smi,
        nvml=lambda: None,
    )
    condition = Condition(clock=1320, watts=412, degrees=41)
    assert whole(machine) == [GpuUse(0.37, 297, 192 * GIB, condition)] * 8


def test_a_driver_that_fails_is_asked_again_and_a_node_without_gpus_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use, "AGAIN_SECONDS", 0.01)
    heard: list[Sequence[GpuUse]] = []
    ended: list[Sequence[GpuUse]] = []  # its thread may tell once more after the block
    with use.watching(read_settings({}), ended.append, nvidia(tmp_path, nvmlInit={"error": 999})):
        pass
    broken = machines.nvml("h100-good")
    broken._record["nvmlInit"] = {"error": 999}
    machine = Machine(dev=machines.nvidia_dev(tmp_path), nvml=lambda: broken)
    with use.watching(read_settings({}), heard.append, machine):
        eventually(lambda: len(heard) > 1)
        assert heard[0] == ()
        del broken._record["nvmlInit"]
        eventually(lambda: len(heard[-1]) == 8)
    dev = tmp_path / "none"
    dev.mkdir()
    heard.clear()
    with use.watching(read_settings({}), heard.append, Machine(dev=dev)):
        eventually(lambda: "gpu-use" not in {one.name for one in threading.enumerate()})
    assert heard == []


def test_a_gpu_tells_its_clock_its_power_and_why_it_is_held_down(tmp_path: Path) -> None:
    hot = {
        "nvmlDeviceGetClockInfo": 1200,
        "nvmlDeviceGetPowerUsage": 349_600,
        "nvmlDeviceGetTemperature": 86,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x24,
    }
    first, second, *_ = whole(nvidia(tmp_path, {"0": hot}))
    held = ("too hot (driver)", "the power limit")
    assert first.condition == Condition(clock=1200, watts=350, degrees=86, held_by=held)
    assert (second.condition.clock, second.condition.watts) == (None, None), "it does not say"
