"""vLLM's plugin of this package: GPUs have every name by which CUDA_VISIBLE_DEVICES may call them.

CUDA takes a number, a UUID, the first characters of a UUID, or a MIG device's name. vLLM 0.29 asks
NVML for the name as it is. NVML knows no beginnings of UUIDs, and numbers a MIG device within its
GPU, so that vLLM would ask another GPU, or none. vLLM loads plugins in all of its processes, also
in those that it starts only to look at a model's class.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Patch vLLM's platform in this process if it is CUDA's with NVML."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return
    from vllm.utils.import_utils import import_pynvml

    nvml = import_pynvml()
    named = classmethod(lambda _, name: index_of(name, nvml))
    type(current_platform).device_control_id_to_physical_device_id = named


def index_of(name: str, nvml: Any) -> int:
    """Return NVML's number of the GPU that `name` means to CUDA, or of which it is a part.

    Raises NVMLError if no GPU, or more than one, has the name.
    """
    if name.strip().isdigit():
        return int(name)
    nvml.nvmlInit()
    try:
        handle = _handle(name.strip(), nvml)
        if nvml.nvmlDeviceIsMigDeviceHandle(handle):
            handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return int(nvml.nvmlDeviceGetIndex(handle))
    finally:
        nvml.nvmlShutdown()


def _handle(name: str, nvml: Any) -> Any:
    """Return NVML's handle of a GPU or MIG device, by its UUID or the UUID's beginning."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(name)
    except nvml.NVMLError:
        devices = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        found = [one for one in devices if nvml.nvmlDeviceGetUUID(one).startswith(name)]
        if len(found) != 1:
            raise
        return found[0]
