"""What a node says about itself at check-in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contract.durations import counted
from contract.resources import NodeResources


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    node: str
    address: str
    versions: Mapping[str, str]
    inventory: Mapping[str, float] = field(default_factory=dict)
    gpu_ids: Sequence[str] = ()
    """What identifies its GPUs, where the driver says it."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom Ray resources."""
    joined: bool = False
    """The node's Ray has joined the head's cluster."""
    warnings: Sequence[str] = ()
    """Names of the preflight checks that did not pass."""
    findings: Mapping[str, str] = field(default_factory=dict)
    """Check that did not pass → its verdict, its evidence, and what to do, in one line."""
    rejoins: str = ""
    """Why the node ended its Ray before it checks in again, in words."""
    examined: str = ""
    """Identifies the process that has passed every check; "" if some were skipped."""
    unfit: Sequence[str] = ()
    """Sentences on the failed checks that keep the node from joining."""
    tls: str = ""
    """Which certificates the node accepts, as all nodes have to; "" without TLS."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The node's variables for NCCL, RCCL and gloo."""
    storage: str = ""
    """Name of the file that the worker wrote to its run directory to prove that it is the head's.
    Once the head sees the file, it replaces the name by its incarnation, as in its own NodeInfo."""
    clock: float | None = None
    """The node's time when it sends this, in seconds of the epoch."""
    rank: int | None = None
    """The number that the platform gives the node; None if it gives none."""
    oom_kills: int = 0
    """Processes of its container that the kernel has killed for lack of memory."""

    @property
    def has(self) -> str:
        """Such as "2 CPUs, 8 GPUs, 23.5 GiB"."""
        cpus, gpus = self.inventory.get("cpus", 0), self.inventory.get("gpus", 0)
        memory = self.inventory.get("memory_bytes", 0) / 2**30
        return f"{counted(cpus, 'CPU')}, {counted(gpus, 'GPU')}, {memory:.1f} GiB"

    @property
    def offer(self) -> NodeResources:
        """What the node offers to a job."""
        return NodeResources(
            name=self.node,
            gpus=int(self.inventory.get("gpus", 0)),
            gpu_memory=int(self.inventory.get("gpu_memory_bytes", 0)),
            gpu_model=self.versions.get("gpu", ""),
            cpus=self.inventory.get("cpus", 0.0),
            memory=int(self.inventory.get("memory_bytes", 0)),
            resources=self.resources,
        )
