"""The resources of a node that a job can use; the expected numbers of each GPU model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """GPUs, CPUs and custom Ray resources of one node."""

    name: str
    gpus: int = 0
    gpu_memory: int = 0
    """Bytes of its smallest GPU; 0 if unknown."""
    gpu_model: str = ""
    """The model of its first GPU, as the driver names it; "" if unknown."""
    cpus: float = 0.0
    memory: int = 0
    """Bytes of the CPUs' memory; 0 if unknown."""
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """Peaks are the maker's own, dense; of BF16, or FP16 if the model has no BF16.

    From the makers' data sheets; of RTX 4090 from NVIDIA's paper on the Ada GPU architecture. The
    all-reduce is from Azure's node health checks.
    """

    name: str
    """Whole words of the name by which the driver calls it."""
    tflops: float
    """10^12 operations a second."""
    memory_gbs: float
    """10^9 bytes a second, of the GPU's own memory."""
    pcie_generation: int
    all_reduce_gbs: float = 0.0
    """Bus bandwidth, 10^9 bytes a second, that eight of them reach within one node; 0: unknown."""
    links: int = 0
    """NVLink or XGMI links to other GPUs; 0: none, or only by a bridge that may be absent."""
    any_slot: bool = False
    """It is also on boards that give a GPU fewer lanes than it has, such as x8 to each of two."""


GPU_MODELS = (
    GpuModel(
        name="B200",
        tflops=2250,
        memory_gbs=7700,
        pcie_generation=5,
        links=18,
    ),
    GpuModel(
        name="H200 NVL",
        tflops=836,
        memory_gbs=4800,
        pcie_generation=5,
    ),
    GpuModel(
        name="H200",
        tflops=989,
        memory_gbs=4800,
        pcie_generation=5,
        all_reduce_gbs=480,
        links=18,
    ),
    GpuModel(name="H100 PCIe", tflops=756, memory_gbs=2000, pcie_generation=5),
    GpuModel(name="H100 NVL", tflops=836, memory_gbs=3900, pcie_generation=5),
    GpuModel(
        name="H100",
        tflops=989,
        memory_gbs=3350,
        pcie_generation=5,
        all_reduce_gbs=460,
        links=18,
    ),
    GpuModel(name="A100-PCIE-40GB", tflops=312, memory_gbs=1555, pcie_generation=4),
    GpuModel(name="A100 80GB PCIe", tflops=312, memory_gbs=1935, pcie_generation=4),
    GpuModel(
        name="A100-SXM4-40GB",
        tflops=312,
        memory_gbs=1555,
        pcie_generation=4,
        all_reduce_gbs=228,
        links=12,
    ),
    GpuModel(
        name="A100-SXM4-80GB",
        tflops=312,
        memory_gbs=2039,
        pcie_generation=4,
        all_reduce_gbs=228,
        links=12,
    ),
    GpuModel(
        name="V100-SXM2",
        tflops=125,
        memory_gbs=900,
        pcie_generation=3,
        links=6,
    ),
    GpuModel(
        name="L40S",
        tflops=362,
        memory_gbs=864,
        pcie_generation=4,
    ),
    GpuModel(
        name="A10",
        tflops=125,
        memory_gbs=600,
        pcie_generation=4,
    ),
    GpuModel(
        name="RTX 4090",
        tflops=165,
        memory_gbs=1008,
        pcie_generation=4,
        any_slot=True,
    ),
    GpuModel(
        name="MI325X",
        tflops=1307,
        memory_gbs=6000,
        pcie_generation=5,
        links=7,
    ),
    GpuModel(
        name="MI300X",
        tflops=1307,
        memory_gbs=5300,
        pcie_generation=5,
        all_reduce_gbs=314,
        links=7,
    ),
)


def gpu_model(name: str) -> GpuModel | None:
    """The model that a driver's name means; None if the table does not have it.

    GH200 and GB200 are other models than H200 and B200, and so are a laptop's RTX 4090 and the
    RTX 4090 D.
    """
    return next((model for model in GPU_MODELS if _named(model, name)), None)


def _named(model: GpuModel, name: str) -> bool:
    words = rf"(?<![a-z0-9]){re.escape(model.name)}(?![a-z0-9])(?! (?:Laptop|D)\b)"
    return re.search(words, name, re.IGNORECASE) is not None


def gib(size: float) -> str:
    """Return a number of bytes for a sentence."""
    return f"{size / 2**30:.1f} GiB"
