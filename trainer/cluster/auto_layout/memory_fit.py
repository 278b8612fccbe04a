"""Compares the estimated memory of a layout with the memory of the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contract.resources import NodeResources
from trainer.cluster import host_memory, memory_estimate
from trainer.cluster.bin_packing import Assignment
from trainer.cluster.memory_estimate import PoolMemory
from trainer.config.layout import Role

if TYPE_CHECKING:
    from trainer.cluster.model_size import ModelSize
    from trainer.config.config import Config

FILLED = 0.9
"""Share of a GPU's memory that the estimate may fill; the rest is for what it leaves out."""
ENGINE_WEIGHTS = 0.7
"""Share of an engine's memory that its weights may take; the rest is for keys and values."""
ASSUMED_GPU_MEMORY = 80 * 10**9
"""Bytes of a GPU whose memory nobody knows."""


@dataclass(frozen=True, slots=True)
class Use:
    """Estimated bytes, and the bytes that are there."""

    need: int = 0
    """0 if the size of a model is unknown."""
    memory: int = 0
    """0 if unknown."""
    role: str = ""
    """The role that needs most."""

    @property
    def filled(self) -> float:
        return self.need / self.memory if self.memory else 0.0


@dataclass(frozen=True, slots=True)
class MemoryUse:
    gpu: Use
    """Of the fullest GPU, in the phase in which it is fullest."""
    host: Use
    """Of the CPUs' memory of the fullest node."""

    @property
    def fits(self) -> bool:
        return self.gpu.filled <= FILLED and self.host.filled <= host_memory.FILLED


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    nodes: Sequence[NodeResources]
    sizes: Mapping[str, ModelSize | None]
    """Model → its size; None if unknown."""

    def of(self, config: Config, found: Assignment) -> MemoryUse:
        """Return the memory of a layout that lies on these nodes."""
        memories = {node.name: node.gpu_memory or ASSUMED_GPU_MEMORY for node in self.nodes}
        uses = []
        for pool in found.layout.pools:
            memory = min(memories[name] for name in found.nodes[pool.name])
            made = memory_estimate.of_pool(config, found.layout, pool, self.sizes.get)
            uses.append(_on_gpu(made, memory) if made else Use(0, memory))
        return MemoryUse(max(uses, key=_filled), self._on_host(config, found))

    def _on_host(self, config: Config, found: Assignment) -> Use:
        """Return the use of the CPUs' memory of the fullest node."""
        needs = host_memory.of_nodes(config, found, self.nodes, self.sizes.get)
        most = host_memory.fullest(needs, self.nodes)
        return Use(most[1].need, most[0].memory) if most else Use()

    def lacking_on_host(self, config: Config, found: Assignment, more: Sequence[str]) -> str | None:
        """Return the node whose CPUs' memory may not suffice, and what would do, also `more`."""
        return host_memory.lacking(config, found, self.nodes, self.sizes.get, more=more)


def _on_gpu(pool: PoolMemory, memory: int) -> Use:
    """Return the use of a GPU in the phase in which it is fullest."""
    weights = int(FILLED * pool.engine_weights / ((pool.engine_share or 1) * ENGINE_WEIGHTS))
    uses = [Use(weights, memory, Role.ENGINE)]
    needs = pool.needs(memory)
    for phase, held in pool.phases.items():
        if not pool.engines or any(role != Role.ENGINE for role in held):
            most = max(held, key=lambda role: held[role])
            uses.append(Use(needs[phase], memory, most))
    return max(uses, key=_filled)


def _filled(use: Use) -> float:
    return use.filled
