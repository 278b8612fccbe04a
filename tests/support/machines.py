"""Machines for the checks to look at: recorded libraries, device files, trees of the kernel's."""

# ruff: noqa: N802 - the names are the library's own
from __future__ import annotations

import inspect
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from tests.support.repository import DATA

CONSTANTS = {
    "NVML_ERROR_INVALID_ARGUMENT": 2,
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_NOT_FOUND": 6,
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": 25,
    "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": 230,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "NVML_VOLATILE_ECC": 0,
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": 1,
    "NVML_CLOCK_SM": 1,
    "NVML_NVLINK_MAX_LINKS": 36,
    "NVML_NVLINK_ERROR_DL_REPLAY": 0,
    "NVML_NVLINK_ERROR_DL_RECOVERY": 1,
    "NVML_NVLINK_ERROR_DL_CRC_FLIT": 2,
    "NVML_NVLINK_ERROR_DL_CRC_DATA": 3,
    "NVML_DEVICE_MIG_ENABLE": 1,
    "nvmlClocksEventReasonHwSlowdown": 0x08,
    "nvmlClocksEventReasonHwThermalSlowdown": 0x40,
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": 0x80,
    "nvmlClocksEventReasonSwThermalSlowdown": 0x20,
    "nvmlClocksEventReasonSwPowerCap": 0x04,
    "nvmlMemory_v2": 0x02000028,
}
"""As `nvml.h` has them; a test holds them against the installed package."""


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value
        super().__init__({15: "GPU is lost", 999: "Unknown Error"}.get(value, f"error {value}"))


class RecordedNvml:
    """Answers as a file has them; see tests/data/nvml/README.md."""

    NVMLError = NVMLError

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record

    def nvmlInit(self) -> None:
        if error := self._record.get("nvmlInit"):
            raise NVMLError(error["error"])

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return int(self._record["count"])

    def __getattr__(self, name: str) -> Any:
        if name in CONSTANTS:
            return CONSTANTS[name]
        if not name.startswith("nvml"):
            raise AttributeError(name)
        theirs = inspect.signature(inspect.unwrap(getattr(pynvml, name)))

        def call(*arguments: Any) -> Any:
            theirs.bind(*arguments)  # the package takes them too
            return self._answer(name, *arguments)

        return call

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name in self._record["system"]:
            return self._record["system"][name]
        if name == "nvmlDeviceGetUUID":
            return uuid(arguments[0])
        if name == "nvmlDeviceGetPciInfo":
            return SimpleNamespace(domain=0, bus=BUSES[arguments[0]], device=0)
        if name == "nvmlDeviceGetHandleByUUID":  # of MIG devices: those of GPU 3 alone
            return f"3/{arguments[0]}"
        if name == "nvmlDeviceGetDeviceHandleFromMigDeviceHandle":
            return int(arguments[0].partition("/")[0])
        if name == "nvmlDeviceGetIndex":
            return arguments[0]
        if name == "nvmlDeviceGetHandleByIndex":
            own = self._record["devices"].get(str(arguments[0]), {})
            return _value(own.get(name, arguments[0]))
        index, *rest = arguments
        own = self._record["devices"].get(str(index), {})
        value = _value(own.get(name, self._record["device"].get(name, {"error": 3})))
        return _shaped(name, value, rest)


BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
"""Of the recorded GPUs, one after the other."""


def uuid(index: int) -> str:
    """Of a recorded GPU."""
    return f"GPU-8932f93{index}-d72c-4106-acb4-000000000000"


def _value(value: Any) -> Any:
    if isinstance(value, dict) and "error" in value:
        raise NVMLError(value["error"])
    return value


def _shaped(name: str, value: Any, arguments: list[Any]) -> Any:
    """As the package gives it: its structures, and answers that depend on an argument."""
    match name:
        case "nvmlDeviceGetFieldValues":
            told = [value[str(one)] for one in arguments[0]]
            return [
                SimpleNamespace(**one)
                if isinstance(one, dict)
                else SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=one))
                for one in told
            ]
        case "nvmlDeviceGetTotalEccErrors":
            return value[str(arguments[0])]
        case "nvmlDeviceGetNvLinkState":
            if arguments[0] >= len(value):
                raise NVMLError(2)
            return value[arguments[0]]
        case "nvmlDeviceGetMemoryInfo" | "nvmlDeviceGetUtilizationRates":
            return SimpleNamespace(**value)
        case "nvmlDeviceGetComputeRunningProcesses":
            return [SimpleNamespace(**one) for one in value]
    return value


def nvml(state: str, devices: dict[str, Any] | None = None, **changes: Any) -> RecordedNvml:
    """The library of a machine in `state`, `changes` made to what each device answers, and
    `devices` to what some of them do."""
    record = json.loads((DATA / "nvml" / f"{state}.json").read_text())
    record["device"] |= changes
    record["devices"] |= devices or {}
    return RecordedNvml(record)


def write(root: Path, files: dict[str, str | int]) -> Path:
    """A tree of small files, as the kernel's are."""
    for directory in {os.path.dirname(name) for name in files}:  # noqa: PTH120
        (root / directory).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name).write_text(f"{text}\n")
    return root


def nvidia_dev(root: Path, gpus: int = 8) -> Path:
    """/dev of a container with NVIDIA's GPUs."""
    names = [*(f"nvidia{number}" for number in range(gpus)), "nvidiactl", "nvidia-uvm"]
    return write(root / "dev", dict.fromkeys(names, ""))


def amd_dev(root: Path, gpus: int = 8) -> Path:
    names = [f"dri/renderD{128 + number}" for number in range(gpus)]
    return write(root / "dev", dict.fromkeys([*names, "kfd"], ""))


MI300X: dict[str, str | int] = {
    "vendor": "0x1002",
    "device": "0x74a1",
    "product_name": "AMD Instinct MI300X OAM",
    "ras/umc_err_count": "ue: 0\nce: 0",
    "ras/gfx_err_count": "ue: 0\nce: 3",
    "ras/xgmi_wafl_err_count": "ue: 0\nce: 0",
    "hwmon/hwmon5/temp2_label": "junction",
    "hwmon/hwmon5/temp2_input": 41000,
    "hwmon/hwmon5/temp2_crit": 100000,
    "hwmon/hwmon5/freq1_input": 1320 * 10**6,
    "hwmon/hwmon5/power1_average": 412 * 10**6,
    "current_link_width": 16,
    "max_link_width": 16,
    "max_link_speed": "32.0 GT/s PCIe",
    "current_compute_partition": "SPX",
    "mem_info_vram_used": 297 * 1024**2,
    "mem_info_vram_total": 192 * 1024**3,
    "gpu_busy_percent": 37,
    **{f"xgmi_hive_info/node{number}": "" for number in range(1, 9)},
}
"""What the amdgpu driver shows of a healthy MI300X below its device's directory."""


def amd_sys(root: Path, gpus: int = 8, **changes: str | int) -> Path:
    """/sys of a machine with MI300X; `changes` are GPU 0's, `/` in names written as `__`."""
    for number in range(gpus):
        own = {name.replace("__", "/"): value for name, value in changes.items()}
        files = MI300X | (own if number == 0 else {})
        write(root / "sys" / "class" / "drm" / f"renderD{128 + number}" / "device", files)
    return root / "sys"


class AmdSmiError(Exception):
    def __init__(self, info: str, err_code: int = 2) -> None:
        self.err_code = err_code
        super().__init__(info)


MI300X_ANSWERS: dict[str, Any] = {
    "amdsmi_get_gpu_asic_info": {
        "market_name": "AMD Instinct MI300X OAM",
        "target_graphics_version": "gfx942",
    },
    "amdsmi_get_gpu_total_ecc_count": {
        "correctable_count": 3,
        "uncorrectable_count": 0,
        "deferred_count": 0,
    },
    "amdsmi_get_gpu_xgmi_link_status": {"status": ["X", *"UUUUUUU"], "total_links": 8},
    "amdsmi_get_gpu_compute_partition": "SPX",
    "amdsmi_get_temp_metric": {"current": 41, "critical": 100},
    "amdsmi_get_pcie_info": {
        "pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 5},
        "pcie_metric": {"pcie_width": 16},
    },
    "amdsmi_get_gpu_memory_total": 192 * 1024**3,
    "amdsmi_get_gpu_memory_usage": 297 * 1024**2,
    "amdsmi_get_clock_info": {"clk": 1320, "min_clk": 132, "max_clk": 2100},
    "amdsmi_get_power_info": {"current_socket_power": 412, "average_socket_power": "N/A"},
    "amdsmi_get_gpu_activity": {"gfx_activity": 37, "umc_activity": 4, "mm_activity": "N/A"},
}


class RecordedAmdSmi:
    """amdsmi on eight MI300X; `changes`: GPU 0's answers, an exception among them is raised.

    As the library does, it keeps one flag, whoever starts it and shuts it down.
    """

    AmdSmiException = AmdSmiError
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current", CRITICAL="critical")
    AmdSmiClkType = SimpleNamespace(GFX="gfx")
    AmdSmiMemoryType = SimpleNamespace(VRAM="vram")

    def __init__(self, **changes: Any) -> None:
        self._changes = changes
        self.running = False
        self.call_seconds = 0.0

    def amdsmi_init(self) -> None:
        if "amdsmi_init" in self._changes:
            raise self._changes["amdsmi_init"]
        self.running = True

    def amdsmi_shut_down(self) -> None:
        self.running = False

    def amdsmi_get_processor_handles(self) -> list[int]:
        self._call()
        return list(range(8))

    def _call(self) -> None:
        time.sleep(self.call_seconds)
        if not self.running:
            raise AmdSmiError("AMDSMI_STATUS_NOT_INIT - Device not initialized", 32)

    def __getattr__(self, name: str) -> Any:
        def answer(handle: int, *arguments: Any) -> Any:
            self._call()
            given = MI300X_ANSWERS | (self._changes if handle == 0 else {})
            if isinstance(given[name], Exception):
                raise given[name]
            return given[name][arguments[1]] if name == "amdsmi_get_temp_metric" else given[name]

        return answer


PORT: dict[str, str | int] = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "gids/0": "fe80:0000:0000:0000:0c42:a103:00ab:cdef",
    "counters/link_downed": 1,
    "counters/symbol_error": 0,
    "counters/port_rcv_errors": 0,
    "counters/port_xmit_discards": 12,
}
ROCE_GIDS: dict[str, str | int] = {
    "link_layer": "Ethernet",
    "rate": "200 Gb/sec (4X HDR)",
    "gids/0": "fe80:0000:0000:0000:0c42:a1ff:feab:cdef",
    "gid_attrs/types/0": "IB/RoCE v1",
    "gids/1": "fe80:0000:0000:0000:0c42:a1ff:feab:cdef",
    "gid_attrs/types/1": "RoCE v2",
    "gids/2": "0000:0000:0000:0000:0000:ffff:0a00:0005",
    "gid_attrs/types/2": "IB/RoCE v1",
    "gids/3": "0000:0000:0000:0000:0000:ffff:0a00:0005",
    "gid_attrs/types/3": "RoCE v2",
    "gids/4": "0000:0000:0000:0000:0000:0000:0000:0000",
}
DOWN: dict[str, str | int] = {"state": "1: DOWN", "phys_state": "2: Polling"}


def rdma_dev(root: Path, devices: int = 4) -> Path:
    """/dev of a container that was given the InfiniBand devices, and NVIDIA's GPUs."""
    write(root / "dev", {f"infiniband/uverbs{number}": "" for number in range(devices)})
    return nvidia_dev(root)


def fabric(
    root: Path,
    *,
    devices: int = 4,
    roce: bool = False,
    mtus: tuple[int, ...] = (9000,),
    **changes: dict[str, str | int],
) -> Path:
    """/sys of a machine with mlx5_0 …; `changes`: a device's name to what its port has instead."""
    for number in range(devices):
        name = f"mlx5_{number}"
        directory = root / "sys" / "class" / "infiniband" / name
        port = PORT | (ROCE_GIDS if roce else {}) | changes.get(name, {})
        write(directory / "ports" / "1", port)
        write(directory.parents[1] / "infiniband_verbs" / f"uverbs{number}", {"ibdev": name})
        if roce:
            write(directory, {f"device/net/eth{number}/mtu": mtus[number % len(mtus)]})
    return root / "sys"


def network(root: Path, *names: str, down: tuple[str, ...] = ()) -> Path:
    """/sys with network interfaces in the order of their numbers, and a loopback."""
    for number, name in enumerate(("lo", *names), 1):
        state = "down" if name in down else "up"
        kind = 772 if name == "lo" else 1
        files: dict[str, str | int] = {"operstate": state, "mtu": 1500, "ifindex": number}
        write(root / "sys" / "class" / "net" / name, files | {"type": kind})
    return root / "sys"
