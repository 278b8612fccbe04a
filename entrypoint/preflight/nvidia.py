"""NVIDIA's GPUs, asked through NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from entrypoint.preflight.gpus import (
    GpuError,
    Links,
    Memory,
    MemoryErrors,
    Pcie,
    RemappedRows,
    Temperature,
)
from entrypoint.preflight.nvml import Handle, Nvml

T = TypeVar("T")

RECOVERY_ACTIONS = {
    0: "",
    1: "reset the GPU",
    2: "reboot the node",
    3: "take the work off its peers (drain P2P)",
    4: "take the work off and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
"""NVML_GPU_RECOVERY_ACTION_*, as nvml.h numbers them."""


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    nvml: Nvml
    index: int
    handle: Handle

    def model(self) -> str:
        return self._ask(self.nvml.nvmlDeviceGetName, self.handle) or "unknown model"

    def recovery_action(self) -> str | None:
        """Drivers since 570 tell it."""
        field = self.nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        values = self._ask(self.nvml.nvmlDeviceGetFieldValues, self.handle, [field])
        if values is None or values[0].nvmlReturn != 0:
            return None
        action = values[0].value.uiVal
        return RECOVERY_ACTIONS.get(action, f"recovery action {action}")

    def memory_errors(self) -> MemoryErrors | None:
        nvml = self.nvml
        uncorrected, corrected = (
            self._ask(nvml.nvmlDeviceGetTotalEccErrors, self.handle, kind, nvml.NVML_VOLATILE_ECC)
            for kind in (
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            )
        )
        return None if uncorrected is None else MemoryErrors(uncorrected, corrected or 0)

    def remapped_rows(self) -> RemappedRows | None:
        rows = self._ask(self.nvml.nvmlDeviceGetRemappedRows, self.handle)
        if rows is None:
            return None
        _, uncorrected, pending, failed = rows
        return RemappedRows(uncorrected, bool(pending), bool(failed))

    def slowdowns(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        nvml = self.nvml
        bits = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, self.handle)
        if bits is None:
            return None
        faults = {
            nvml.nvmlClocksEventReasonHwThermalSlowdown: "too hot (hardware)",
            nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "the power supply's brake",
            nvml.nvmlClocksEventReasonSwThermalSlowdown: "too hot (driver)",
            nvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
        }
        limits = {nvml.nvmlClocksEventReasonSwPowerCap: "the power limit"}
        held_by_fault, held_by_limit = (
            tuple(name for bit, name in reasons.items() if bits & bit)
            for reasons in (faults, limits)
        )
        return held_by_fault, held_by_limit

    def temperature(self) -> Temperature | None:
        nvml = self.nvml
        now = self._ask(nvml.nvmlDeviceGetTemperature, self.handle, nvml.NVML_TEMPERATURE_GPU)
        slowdown = self._ask(
            nvml.nvmlDeviceGetTemperatureThreshold,
            self.handle,
            nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        )
        return None if now is None else Temperature(now, slowdown)

    def pcie(self) -> Pcie | None:
        nvml = self.nvml
        width = self._ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, self.handle)
        max_width = self._ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, self.handle)
        generation = self._ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, self.handle)
        return None if width is None or max_width is None else Pcie(width, max_width, generation)

    def links(self) -> Links | None:
        states = []
        for link in range(self.nvml.NVML_NVLINK_MAX_LINKS):
            state = self._ask(self.nvml.nvmlDeviceGetNvLinkState, self.handle, link)
            if state is None:
                break
            states.append(state)
        return Links(sum(states), len(states) - sum(states)) if states else None

    def partition(self) -> str | None:
        modes = self._ask(self.nvml.nvmlDeviceGetMigMode, self.handle)
        if modes is None:
            return None
        return "MIG" if modes[0] == self.nvml.NVML_DEVICE_MIG_ENABLE else ""

    def memory(self) -> Memory | None:
        """Without what the driver keeps for itself, which version 2 of the answer leaves out."""
        nvml = self.nvml
        row = self._ask(nvml.nvmlDeviceGetMemoryInfo, self.handle, nvml.nvmlMemory_v2)
        return None if row is None else Memory(row.used, row.total)

    def processes(self) -> tuple[int, ...]:
        running = self._ask(self.nvml.nvmlDeviceGetComputeRunningProcesses, self.handle)
        return tuple(one.pid for one in running or ())

    def _ask(self, call: Callable[..., T], *arguments: object) -> T | None:
        """None where this GPU or driver does not tell. Raises GpuError for any other error."""
        nvml = self.nvml
        try:
            return call(*arguments)
        except nvml.NVMLError as error:
            untold = (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_NOT_FOUND,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            )
            if getattr(error, "value", None) in untold:
                return None
            raise GpuError(f"{error}") from None


@contextmanager
def opened(nvml: Nvml) -> Iterator[Nvml]:
    """The library in use; it counts its users. Raises GpuError where it does not start."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise GpuError(f"NVML does not start: {error}") from None
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def gpu_at(nvml: Nvml, index: int) -> NvidiaGpu:
    """Raises GpuError where it is there by its number alone: fallen off the bus, for one."""
    try:
        return NvidiaGpu(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        raise GpuError(str(error)) from None
