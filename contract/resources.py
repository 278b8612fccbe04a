"""The resources of a node that a job can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """GPUs, CPUs and custom Ray resources of one node."""

    name: str
    gpus: int = 0
    cpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
