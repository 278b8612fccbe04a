"""Where processes run: a bundle for each slot of the layout, on the node that the plan gives it.

One placement group holds them all, so that a run gets every slot or none, and two runs never hold
half a cluster each. Each bundle is bound to its node by Ray's label for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contract.resources import Offer
from trainer.cluster.bin_packing import Assignment, assign
from trainer.config.layout import Layout, Pool
from trainer.types import TrainingError

A = TypeVar("A")
T = TypeVar("T")

PATIENCE_SECONDS = 120.0
"""How long a cluster may take to give what its totals promise."""
POLL_SECONDS = 2.0
"""How often it is looked whether the nodes of the plan still live."""
FINEST = 10_000
"""Ray counts resources in parts of this size."""


class LayoutError(Exception):
    """The cluster cannot hold the layout; says every shortfall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What one process asks Ray for."""

    bundles: tuple[int, ...]
    """It lies in the first; the others are for the rest of its tensor parallel ranks."""
    fraction: float
    """Its part of each bundle."""
    on_gpus: bool
    cpus: float
    """CPUs of it, where slots are no GPUs."""
    resources: dict[str, float]
    """What each bundle holds."""
    node: str
    """Ray's id of the node that all of them are on."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Bundles reserved for the processes of one run."""

    assignment: Assignment
    group: Any
    """Ray's placement group; bundles are numbered as the layout's slots, pool by pool."""
    names: dict[str, str]
    """Ray's id of a node → its name."""

    def seat(self, role: str, process: int) -> Seat:
        layout = self.assignment.layout
        pool = layout.pool_of(role)
        before = sum(one.slots for one in layout.pools[: layout.pools.index(pool)])
        fraction = FINEST // pool.tenants / FINEST
        slots = pool.seats(role)[process]
        return Seat(
            bundles=tuple(before + slot for slot in slots),
            fraction=fraction,
            on_gpus=self.assignment.on_gpus,
            cpus=int(FINEST * self.assignment.cpus * fraction) / FINEST,
            resources=_bundle(self.assignment, pool),
            node=self.assignment.node_of(pool, slots[0]),
        )

    def sentences(self) -> list[str]:
        """Who is where, one sentence for each pool, and what was arranged otherwise."""
        unit = "GPU" if self.assignment.on_gpus else "CPU slot"
        said = []
        for pool in self.assignment.layout.pools:
            nodes = ", ".join(self.names[node] for node in self.assignment.nodes[pool.name])
            each = f"{pool.per_node} {unit}{'' if pool.per_node == 1 else 's'}"
            said.append(f"{pool.name}: {each} on {nodes}")
        return [*said, self.assignment.note] if self.assignment.note else said


def on_each_node(placement: Placement, function: Callable[[A], T], argument: A) -> dict[str, T]:
    """Node's name → what `function` says there; once on each node that the run uses, all at once.

    Raises what it raises on any of them.
    """
    task = ray.remote(num_cpus=0)(function)
    nodes = dict.fromkeys(node for nodes in placement.assignment.nodes.values() for node in nodes)
    pending = {
        node: task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(argument)
        for node in nodes
    }
    try:
        return {placement.names[node]: ray.get(answer) for node, answer in pending.items()}
    except RayTaskError as error:
        raise error.cause from None


def join(layout: Layout) -> None:
    """Join the cluster that RAY_ADDRESS names, or start a local Ray with room for `layout`."""
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=True, job_config=job_config())
    else:
        cpus = max(layout.slots, os.cpu_count() or 1)
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, job_config=job_config())


def reserve(layout: Layout) -> Placement:
    """Every slot of `layout`.

    Raises LayoutError where the cluster's nodes cannot hold it, TrainingError where they could and
    are not free. A node that dies meanwhile is planned around.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        nodes = living_nodes()
        placement = _ask(layout, nodes)
        while not placement.group.wait(POLL_SECONDS):
            if living_nodes().keys() != nodes.keys():
                remove_placement_group(placement.group)
                break
            if time.monotonic() > deadline:
                raise TrainingError(_not_free(placement.assignment))
        else:
            return placement


def living_nodes() -> dict[str, dict[str, Any]]:
    """Ray's id → Ray's row of each living node."""
    rows = sorted(ray.nodes(), key=lambda row: (not _leads(row), row["NodeName"], row["NodeID"]))
    return {row["NodeID"]: row for row in rows if row["Alive"]}


def _leads(row: dict[str, Any]) -> bool:
    return "node:__internal_head__" in row["Resources"]


def _ask(layout: Layout, nodes: dict[str, dict[str, Any]]) -> Placement:
    found = assign(layout, [_offer(name, row["Resources"]) for name, row in nodes.items()])
    if found.shortfalls:
        raise LayoutError(
            "\n".join(["the cluster cannot hold the layout of the flags:", *found.shortfalls])
        )
    bundles, selectors = [], []
    for pool in found.layout.pools:
        for slot in range(pool.slots):
            bundles.append(_bundle(found, pool))
            selectors.append({"ray.io/node-id": found.node_of(pool, slot)})
    group = placement_group(bundles, strategy="PACK", bundle_label_selector=selectors)
    return Placement(found, group, {name: row["NodeName"] for name, row in nodes.items()})


def _bundle(found: Assignment, pool: Pool) -> dict[str, float]:
    """What a slot of the pool holds."""
    unit = {"GPU": 1.0} if found.on_gpus else {"CPU": found.cpus}
    return unit | dict(pool.resources)


def _offer(name: str, resources: dict[str, float]) -> Offer:
    return Offer(
        name=name,
        gpus=int(resources.get("GPU", 0)),
        cpus=resources.get("CPU", 0.0),
        resources=resources,
    )


def _not_free(found: Assignment) -> str:
    unit = "GPU" if found.on_gpus else "CPU"
    free, total = (
        resources.get(unit, 0.0)
        for resources in (ray.available_resources(), ray.cluster_resources())
    )
    wanted = found.layout.slots * (1 if found.on_gpus else found.cpus)
    return (
        f"the layout wants {wanted:g} {unit}s and fits the cluster, but {free:g} of its {total:g} "
        f"{unit}s are free after {PATIENCE_SECONDS:g} s. End what else runs on the cluster"
    )


def job_config() -> Any:
    """For `ray.init`: Ray puts the driver's directory first on the workers' search path, and there
    a user's folder `trainer` or `env` would take the place of this product's.

    Ray leaves it out of a job that comes through its client, whose directory is on another machine.
    """
    from ray.job_config import JobConfig

    return JobConfig(_client_job=True)
