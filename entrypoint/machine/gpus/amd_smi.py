"""The part of AMD's management library that the checks use, by the names of `amdsmi`.

The package comes with ROCm. Without it, the checks read the driver's files.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

Handle = Any


class AmdSmi(Protocol):
    """Calls of `amdsmi`; every one raises AmdSmiException."""

    AmdSmiException: type[Exception]
    AmdSmiTemperatureType: Any
    AmdSmiTemperatureMetric: Any
    AmdSmiMemoryType: Any

    def amdsmi_init(self) -> None: ...
    def amdsmi_shut_down(self) -> None: ...
    def amdsmi_get_processor_handles(self) -> list[Handle]: ...
    def amdsmi_get_gpu_asic_info(self, processor_handle: Handle) -> dict[str, Any]: ...
    def amdsmi_get_gpu_total_ecc_count(self, processor_handle: Handle) -> dict[str, Any]: ...
    def amdsmi_get_gpu_xgmi_link_status(self, processor_handle: Handle) -> dict[str, Any]: ...
    def amdsmi_get_gpu_compute_partition(self, processor_handle: Handle) -> str: ...
    def amdsmi_get_temp_metric(
        self, processor_handle: Handle, sensor_type: Any, metric: Any
    ) -> int: ...
    def amdsmi_get_pcie_info(self, processor_handle: Handle) -> dict[str, Any]: ...
    def amdsmi_get_gpu_memory_total(self, processor_handle: Handle, mem_type: Any) -> int: ...
    def amdsmi_get_gpu_memory_usage(self, processor_handle: Handle, mem_type: Any) -> int: ...


def load() -> AmdSmi | None:
    """The package; None if it, or the library that it loads, is not installed."""
    try:
        return cast(AmdSmi, importlib.import_module("amdsmi"))
    except (ImportError, OSError, KeyError, AttributeError):  # it looks for ROCm as it is imported
        return None
