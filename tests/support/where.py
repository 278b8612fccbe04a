"""An actor that says where it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import ray


@dataclass(frozen=True)
class Spot:
    node: str
    gpus: tuple[int, ...]
    cpus: float
    environment: dict[str, str]


class Where:
    def spot(self) -> Spot:
        context: Any = ray.get_runtime_context()
        return Spot(
            node=context.get_node_id(),
            gpus=tuple(int(gpu) for gpu in ray.get_gpu_ids()),
            cpus=context.get_assigned_resources().get("CPU", 0.0),
            environment={k: v for k, v in os.environ.items() if k.startswith("VLLM_RAY_")},
        )
