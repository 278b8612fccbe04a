"""Where actors run: one bundle each, spread over the nodes of the cluster."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import placement_group

from trainer.types import TrainingError

PATIENCE_SECONDS = 120.0
"""How long a cluster may take to give what its totals promise."""


@dataclass
class Placement:
    """Bundles reserved for the actors of one run."""

    group: Any
    cpus: float
    """CPUs of each bundle."""
    _bundles: itertools.count[int] = field(default_factory=itertools.count)

    def next_bundle(self) -> int:
        return next(self._bundles)


def join(actors: int) -> None:
    """Join the cluster that RAY_ADDRESS names, or start a local Ray with room for `actors`."""
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=True)
    else:
        cpus = max(actors, os.cpu_count() or 1)
        ray.init(address="local", num_cpus=cpus, include_dashboard=False)


def cpu_share(actors: int, cpus: float) -> float:
    """CPUs that each actor reserves: one, or an equal share where the cluster has fewer."""
    return min(1.0, int(100 * cpus / actors) / 100)


def reserve(actors: int) -> Placement:
    """Bundles for `actors`. Raises TrainingError where the cluster does not have them free."""
    total = ray.cluster_resources().get("CPU", 0.0)
    cpus = cpu_share(actors, total)
    if cpus <= 0:
        raise TrainingError(f"the cluster has {total:g} CPUs, too few for {actors} actors")
    group = placement_group([{"CPU": cpus}] * actors, strategy="SPREAD")
    if not group.wait(PATIENCE_SECONDS):
        free = ray.available_resources().get("CPU", 0.0)
        raise TrainingError(
            f"{actors} actors of {cpus:g} CPU do not fit: {free:g} of the cluster's {total:g} "
            "CPUs are free. End what else runs on the cluster"
        )
    return Placement(group, cpus)
