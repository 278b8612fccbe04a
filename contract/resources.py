"""What a node offers to a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one node has."""

    name: str
    gpus: int = 0
    cpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
