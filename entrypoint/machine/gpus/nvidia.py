"""NVIDIA's GPUs, asked through NVML."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from entrypoint.machine.gpus.protocol import (
    GpuError,
    LinkErrors,
    Links,
    Memory,
    MemoryErrors,
    Pcie,
    RemappedRows,
    Temperature,
)

T = TypeVar("T")

Nvml = Any
"""NVIDIA's management library: the package `pynvml`, or a record of its answers.

Every call raises NVMLError, whose `value` is the code."""
Handle = Any
"""The library's handle of a device."""

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


def load() -> Nvml | None:
    """The library's package; None if it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    nvml: Nvml
    index: int
    handle: Handle
    parts: tuple[Handle, ...] = ()
    """The GPU's MIG devices that this node uses; none if it uses the whole GPU."""

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

    def link_errors(self) -> LinkErrors | None:
        nvml = self.nvml
        of_links = [
            [
                self._ask(nvml.nvmlDeviceGetNvLinkErrorCounter, self.handle, link, kind)
                for kind in (
                    nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
                    nvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
                    nvml.NVML_NVLINK_ERROR_DL_REPLAY,
                    nvml.NVML_NVLINK_ERROR_DL_RECOVERY,
                )
            ]
            for link in range(self._links_there())
        ]
        counted = [
            [count or 0 for count in counts]
            for counts in of_links
            if any(count is not None for count in counts)
        ]
        if not counted:
            return None
        flits, data, replays, recoveries = map(sum, zip(*counted, strict=True))
        return LinkErrors(flits + data, replays + recoveries)

    def _links_there(self) -> int:
        links = self.links()
        return links.up + links.down if links else 0

    def pcie_replays(self) -> int | None:
        return self._ask(self.nvml.nvmlDeviceGetPcieReplayCounter, self.handle)

    def partition(self) -> str | None:
        modes = self._ask(self.nvml.nvmlDeviceGetMigMode, self.handle)
        if modes is None:
            return None
        return "MIG" if modes[0] == self.nvml.NVML_DEVICE_MIG_ENABLE else ""

    def memory(self) -> Memory | None:
        """Without what the driver keeps for itself, which version 2 of the answer leaves out."""
        nvml = self.nvml
        rows = [
            self._ask(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
            for handle in self.parts or (self.handle,)
        ]
        known = [row for row in rows if row is not None]
        return Memory(sum(r.used for r in known), sum(r.total for r in known)) if known else None

    def busy(self) -> float | None:
        """NVML does not know it of a part of a GPU."""
        if self.parts:
            return None
        rates = self._ask(self.nvml.nvmlDeviceGetUtilizationRates, self.handle)
        return None if rates is None else rates.gpu / 100

    def clock(self) -> int | None:
        return self._ask(self.nvml.nvmlDeviceGetClockInfo, self.handle, self.nvml.NVML_CLOCK_SM)

    def power(self) -> float | None:
        milliwatts = self._ask(self.nvml.nvmlDeviceGetPowerUsage, self.handle)
        return None if milliwatts is None else milliwatts / 1000

    def processes(self) -> tuple[int, ...]:
        call = self.nvml.nvmlDeviceGetComputeRunningProcesses
        running = [self._ask(call, handle) or () for handle in self.parts or (self.handle,)]
        return tuple(process.pid for several in running for process in several)

    def address(self) -> str:
        """The address on the PCI bus, as the kernel's log writes it; "" if unknown."""
        info = self._ask(self.nvml.nvmlDeviceGetPciInfo, self.handle)
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}" if info else ""

    def uuid(self) -> str:
        return self._ask(self.nvml.nvmlDeviceGetUUID, self.handle) or ""

    def ids(self) -> tuple[str, ...]:
        ask, handles = self.nvml.nvmlDeviceGetUUID, self.parts or (self.handle,)
        return tuple(filter(None, (self._ask(ask, handle) for handle in handles)))

    def _ask(self, call: Callable[..., T], *arguments: object) -> T | None:
        """The answer; None if this GPU or driver does not know. Raises GpuError otherwise."""
        nvml = self.nvml
        try:
            return call(*arguments)
        except nvml.NVMLError as error:
            unknown = (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_NOT_FOUND,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            )
            if getattr(error, "value", None) in unknown:
                return None
            raise GpuError(f"{error}") from None


@contextmanager
def opened(nvml: Nvml) -> Iterator[Nvml]:
    """Use the library, which counts its users. Raises GpuError if it does not start."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise GpuError(f"NVML does not start: {error}") from None
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def gpu_at(nvml: Nvml, index: int) -> NvidiaGpu:
    """The GPU with a number. Raises GpuError if it does not answer, as one off the bus."""
    try:
        return NvidiaGpu(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        raise GpuError(str(error)) from None


def shown(nvml: Nvml, names: Sequence[str]) -> list[NvidiaGpu | GpuError | None]:
    """Every GPU by its number; None for a GPU that is not in `names`.

    `names`: numbers, beginnings of UUIDs, and MIG devices. Raises GpuError if NVML cannot count.
    """
    try:
        found = [_at(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise GpuError(f"{error}") from None
    by_uuid = tuple(name for name in names if name.startswith("GPU-"))
    uuids = [_answer(gpu, NvidiaGpu.uuid) if by_uuid else "" for gpu in found]
    parts = _parts(nvml, [name for name in names if name.startswith("MIG-")])
    # The UUID of a GPU that does not answer is unknown. It may have the name that fits no other.
    unmet = any(not any(uuid.startswith(name) for uuid in uuids) for name in by_uuid)

    def of_node(index: int, gpu: NvidiaGpu | GpuError) -> NvidiaGpu | GpuError | None:
        named = str(index) in names or uuids[index].startswith(by_uuid or ("no UUID",))
        if isinstance(gpu, GpuError):
            return gpu if named or unmet or index in parts else None
        if index in parts and not named:
            return replace(gpu, parts=tuple(parts[index]))
        return gpu if named else None

    return [of_node(index, gpu) for index, gpu in enumerate(found)]


def addresses(nvml: Nvml, names: Sequence[str]) -> dict[str, bool]:
    """The PCI address of each GPU that knows it, and whether `names` has that GPU."""
    own = [gpu is not None for gpu in shown(nvml, names)]
    found = (_answer(_at(nvml, index), NvidiaGpu.address) for index in range(len(own)))
    return {address: used for address, used in zip(found, own, strict=True) if address}


def _answer(gpu: NvidiaGpu | GpuError, ask: Callable[[NvidiaGpu], str]) -> str:
    """The answer; "" if the GPU gives none."""
    try:
        return "" if isinstance(gpu, GpuError) else ask(gpu)
    except GpuError:
        return ""


def _parts(nvml: Nvml, names: Sequence[str]) -> dict[int, list[Handle]]:
    """A GPU's number to its MIG devices among `names`; without those that NVML cannot place."""
    parts: dict[int, list[Handle]] = {}
    for name in names:
        try:
            part = nvml.nvmlDeviceGetHandleByUUID(name)
            whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
            parts.setdefault(nvml.nvmlDeviceGetIndex(whole), []).append(part)
        except nvml.NVMLError:
            continue
    return parts


def _at(nvml: Nvml, index: int) -> NvidiaGpu | GpuError:
    try:
        return gpu_at(nvml, index)
    except GpuError as error:
        return error
