"""The part of NVIDIA's management library that the checks use, by the names of `pynvml`.

A thin border: the checks speak to this Protocol, so that the same code reads a machine's library
and a record of its answers. A test holds every name here against the installed package.
"""

# ruff: noqa: N802, N803, N815 - the names are the library's own
from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast

Handle = Any
"""What the library gives for a device."""


class Nvml(Protocol):
    """Calls and constants of `pynvml`; every call raises NVMLError, whose `value` is the code."""

    NVMLError: type[Exception]
    NVML_ERROR_INVALID_ARGUMENT: int
    NVML_ERROR_NOT_SUPPORTED: int
    NVML_ERROR_NO_PERMISSION: int
    NVML_ERROR_NOT_FOUND: int
    NVML_ERROR_FUNCTION_NOT_FOUND: int
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH: int
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: int
    NVML_MEMORY_ERROR_TYPE_CORRECTED: int
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED: int
    NVML_VOLATILE_ECC: int
    NVML_TEMPERATURE_GPU: int
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: int
    NVML_NVLINK_MAX_LINKS: int
    NVML_DEVICE_MIG_ENABLE: int
    nvmlClocksEventReasonHwSlowdown: int
    nvmlClocksEventReasonHwThermalSlowdown: int
    nvmlClocksEventReasonHwPowerBrakeSlowdown: int
    nvmlClocksEventReasonSwThermalSlowdown: int
    nvmlClocksEventReasonSwPowerCap: int
    nvmlMemory_v2: int

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlSystemGetCudaDriverVersion(self) -> int: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...
    def nvmlDeviceGetName(self, handle: Handle) -> str: ...
    def nvmlDeviceGetFieldValues(self, handle: Handle, fieldIds: Sequence[int]) -> Any: ...
    def nvmlDeviceGetTotalEccErrors(
        self, handle: Handle, errorType: int, counterType: int
    ) -> int: ...
    def nvmlDeviceGetRemappedRows(self, device: Handle) -> tuple[int, int, int, int]: ...
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle) -> int: ...
    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int: ...
    def nvmlDeviceGetTemperatureThreshold(self, handle: Handle, threshold: int) -> int: ...
    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Handle) -> int: ...
    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Handle) -> int: ...
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Handle) -> int: ...
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Handle) -> int: ...
    def nvmlDeviceGetNvLinkState(self, device: Handle, link: int) -> int: ...
    def nvmlDeviceGetMigMode(self, device: Handle) -> Sequence[int]: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> Sequence[Any]: ...


def load() -> Nvml | None:
    """The library's package; None where it is not installed."""
    try:
        return cast(Nvml, importlib.import_module("pynvml"))
    except ImportError:
        return None
