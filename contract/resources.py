"""The resources of a node that a job can use."""

from __future__ import annotations

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
