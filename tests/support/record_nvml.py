"""Record the answers of this machine's NVML: python -m tests.support.record_nvml > FILE.json

The calls are those that the product makes: each is passed on to the library and written down.
tests/data/nvml/README.md has the format.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

from entrypoint.machine.gpus import nvidia
from entrypoint.machine.gpus.protocol import GpuError

OF_THIS_MACHINE = ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo")
"""Calls whose answers are not written: the recorded GPUs have others."""
FIELDS, ECC, LINK = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetNvLinkState",
)
"""Calls whose answers depend on the argument after the GPU."""


class Recorder:
    """The package `pynvml`, and what it answered for each GPU."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.system: dict[str, Any] = {}
        self.devices: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        theirs = getattr(self._nvml, name)
        if name == "nvmlDeviceGetHandleByIndex":
            return self._handle
        if name.startswith("nvmlSystemGet"):
            return lambda: self.system.setdefault(name, plain(theirs()))
        if name.startswith("nvmlDeviceGet") and name != "nvmlDeviceGetCount":
            return lambda handle, *arguments: self._ask(name, theirs, handle, arguments)
        return theirs

    def _handle(self, index: int) -> tuple[int, Any]:
        while len(self.devices) <= index:
            self.devices.append({})
        try:
            return index, self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            self.devices[index]["nvmlDeviceGetHandleByIndex"] = {"error": error.value}
            raise

    def _ask(self, name: str, theirs: Any, handle: tuple[int, Any], arguments: Any) -> Any:
        index, theirs_of_gpu = handle
        told = self.devices[index]
        try:
            answer = theirs(theirs_of_gpu, *arguments)
        except self._nvml.NVMLError as error:
            if name != LINK or not arguments[0]:
                told[name] = {"error": error.value}
            raise
        if name in OF_THIS_MACHINE:
            return answer
        if name == FIELDS:
            for field, one in zip(arguments[0], answer, strict=True):
                is_known = one.nvmlReturn == 0
                value = one.value.uiVal if is_known else {"nvmlReturn": one.nvmlReturn}
                told.setdefault(name, {})[str(field)] = value
        elif name == ECC:
            told.setdefault(name, {})[str(arguments[0])] = plain(answer)
        elif name == LINK:
            told.setdefault(name, []).append(plain(answer))
        else:
            told[name] = plain(answer)
        return answer


def plain(answer: Any) -> Any:
    """The answer as JSON can have it. The fields of a structure are named."""
    if isinstance(answer, ctypes.Structure):
        return {name: plain(getattr(answer, name)) for name, *_ in answer._fields_}
    if isinstance(answer, list | tuple):
        return [plain(one) for one in answer]
    if hasattr(answer, "__dict__"):
        return {name: plain(value) for name, value in vars(answer).items()}
    return answer.decode() if isinstance(answer, bytes) else answer


def record(nvml: Any) -> dict[str, Any]:
    """Every answer that the product asks for. Raises GpuError if NVML does not start."""
    recorder = Recorder(nvml)
    with nvidia.opened(recorder):
        count = nvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                _ask_all(nvidia.gpu_at(recorder, index))
            except GpuError as error:
                print(f"GPU {index}: {error}", file=sys.stderr)
        recorder.nvmlSystemGetDriverVersion()
        recorder.nvmlSystemGetCudaDriverVersion()
    first, *others = recorder.devices
    different = {
        str(index): {call: value for call, value in one.items() if value != first.get(call)}
        for index, one in enumerate(others, start=1)
    }
    return {
        "system": recorder.system,
        "count": count,
        "device": first,
        "devices": {index: own for index, own in different.items() if own},
    }


def _ask_all(gpu: nvidia.NvidiaGpu) -> None:
    for ask in (
        *(gpu.model, gpu.recovery_action, gpu.memory_errors, gpu.remapped_rows),
        *(gpu.slowdowns, gpu.temperature, gpu.pcie, gpu.links, gpu.partition),
        *(gpu.memory, gpu.busy, gpu.processes),
    ):
        try:
            ask()
        except GpuError as error:
            print(f"GPU {gpu.index}: {error}", file=sys.stderr)


if __name__ == "__main__":
    json.dump(record(nvidia.load()), sys.stdout, indent=1)
    print()
