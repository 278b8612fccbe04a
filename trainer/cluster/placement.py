"""Reserves a bundle for each slot of the layout, on the node that the plan gives it.

One placement group holds all bundles: a run gets every slot or none, and two runs never hold half a
cluster each. Ray's label of a node binds each bundle to its node.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray._private.node import Node
from ray.exceptions import RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contract.files import private_dir, ray_home
from contract.launch import places
from contract.launch.ray_starts import STARTING_AGAIN, lacked_time
from contract.resources import NodeResources
from rollcall import own_packages
from trainer.cluster.bin_packing import Assignment, pack
from trainer.cluster.calls import first_line
from trainer.config.layout import Layout, ResourcePool
from trainer.types import TrainingError

A = TypeVar("A")
T = TypeVar("T")

FREE_SECONDS = 120.0
"""How long to wait for resources that exist but are not free yet."""
STARTS = 3
"""Starts of a local Ray in all. Ray gives the daemon of each 30 s, which no option changes."""
POLL_SECONDS = 2.0
"""Seconds between two checks whether the nodes of the plan still live."""
RESOURCE_UNITS = 10_000
"""Ray counts a resource in units of one ten-thousandth."""


class LayoutError(Exception):
    """The cluster cannot hold the layout. The message has every shortfall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What one process requests from Ray."""

    bundles: tuple[int, ...]
    """The process is in the first; the others are for its further tensor parallel ranks."""
    fraction: float
    """The process's part of each bundle, 0 to 1."""
    on_gpus: bool
    cpus: float
    """CPUs of the process, if slots are not GPUs."""
    resources: dict[str, float]
    """Resources of each bundle."""
    node: str
    """Ray's id of the node of all bundles."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Bundles reserved for the processes of one run."""

    assignment: Assignment
    group: Any
    """Ray's placement group. Its bundles have the numbers of the layout's slots, pool by pool."""
    names: dict[str, str]
    """Ray's id of a node → name of the node."""

    def reservation(self, role: str, process: int) -> Reservation:
        layout = self.assignment.layout
        pool = layout.pool_of(role)
        before = sum(earlier.slots for earlier in layout.pools[: layout.pools.index(pool)])
        fraction = RESOURCE_UNITS // pool.procs_per_slot / RESOURCE_UNITS
        slots = pool.slots_of(role)[process]
        return Reservation(
            bundles=tuple(before + slot for slot in slots),
            fraction=fraction,
            on_gpus=self.assignment.on_gpus,
            cpus=int(RESOURCE_UNITS * self.assignment.cpus * fraction) / RESOURCE_UNITS,
            resources=_bundle(self.assignment, pool),
            node=self.assignment.node_of(pool, slots[0]),
        )

    def sentences(self) -> list[str]:
        """Return the nodes of each pool, one sentence a pool, and the plan's note."""
        unit = "GPU" if self.assignment.on_gpus else "CPU slot"
        sentences = []
        for pool in self.assignment.layout.pools:
            nodes = ", ".join(self.names[node] for node in self.assignment.nodes[pool.name])
            each = f"{pool.per_node} {unit}{'' if pool.per_node == 1 else 's'}"
            sentences.append(f"{pool.name}: {each} on {nodes}")
        return [*sentences, self.assignment.note] if self.assignment.note else sentences


def on_each_node(placement: Placement, function: Callable[[A], T], argument: A) -> dict[str, T]:
    """Call `function` once on each node of the run, in parallel. Returns node name → result.

    Raises what the function raises on any node.
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


def join(layout: Layout) -> bool:
    """Join the cluster that RAY_ADDRESS names, or start a local Ray with room for `layout`.

    Returns whether this process was in a cluster already, which is then used as it is. Raises
    TrainingError if Ray does not start, or if its processes would import a user's modules in place
    of ours.
    """
    if ray.is_initialized():
        if hidden := hiding():
            raise TrainingError(hidden)
        return True
    if os.environ.get("RAY_ADDRESS"):
        with _own_search_path():
            ray.init(log_to_driver=True, job_config=job_config())
    else:
        _start_local(max(layout.slots, len(os.sched_getaffinity(0))))
    return False


def hiding() -> str:
    """Return which module of the user's the Ray of this process would take for ours; "" if none."""
    hidden = own_packages.hiding([str(_program_directory()), "."]) if ray.is_initialized() else []
    if not hidden:
        return ""
    return (
        f"Ray's processes would import {hidden[0]} in place of Rollcall's package of that "
        "name: call `train` without `ray.init` before it, or rename the file"
    )


def _start_local(cpus: int) -> None:
    """Start a Ray of this machine alone, again if its daemon is late."""
    home = ray_home.default(os.environ)
    try:
        private_dir.make(home)
    except private_dir.NotPrivateError as error:
        raise TrainingError(str(error)) from error
    options = {"num_cpus": cpus, "include_dashboard": False, "job_config": job_config()}
    for starts_left in reversed(range(STARTS)):
        try:
            with _own_search_path(), warnings.catch_warnings():
                # Of a change in Ray's next versions, which is nothing that a user of ours decides.
                warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
                ray.init(address="local", _temp_dir=str(home / ray_home.NAME), **options)
            return
        except Exception as error:
            _end_daemons(error)
            if type(error) is not Exception:  # Ray raises a plain one for a daemon that is late
                raise
            words = first_line(error)
            load, on = f"{os.getloadavg()[0]:.0f}", f"{len(os.sched_getaffinity(0))} CPUs"
            if not starts_left or not lacked_time(words):
                raise TrainingError(
                    f"Ray did not start on this machine, whose load is {load} on {on}: {words} "
                    "Start it again when the machine is less busy"
                ) from error
            print(f"{STARTING_AGAIN} ({words} Load {load} on {on})", file=sys.stderr, flush=True)


def _end_daemons(error: Exception) -> None:
    """End what Ray has started before its start raised `error`: it keeps no list of them itself."""
    ray.shutdown()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("self")
        if isinstance(node, Node):
            node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
            return


def release(placement: Placement) -> None:
    """Give back what a run has reserved, and end its processes."""
    remove_placement_group(placement.group)


def reserve(layout: Layout) -> Placement:
    """Reserve every slot of `layout`.

    If a node dies meanwhile, the layout is planned again without it. Raises LayoutError if the
    cluster cannot hold the layout, TrainingError if its resources do not become free.
    """
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        nodes = work_nodes()
        placement = _ask(layout, nodes)
        while not placement.group.wait(POLL_SECONDS):
            if work_nodes().keys() != nodes.keys():
                remove_placement_group(placement.group)
                break
            if time.monotonic() > deadline:
                raise TrainingError(_not_free(placement.assignment))
        else:
            return placement


def living_nodes() -> dict[str, dict[str, Any]]:
    """Return the living nodes: Ray's id → Ray's row. The head comes first."""
    rows = sorted(ray.nodes(), key=lambda row: (not leads(row), row["NodeName"], row["NodeID"]))
    return {row["NodeID"]: row for row in rows if row["Alive"]}


def work_nodes() -> dict[str, dict[str, Any]]:
    """Return the living nodes on which the job begins: not the spares. As `living_nodes`."""
    names = places.read(os.environ)
    return {
        i: row for i, row in living_nodes().items() if names is None or row["NodeName"] in names
    }


def leads(row: Mapping[str, Any]) -> bool:
    """Return whether the node is the head. `row`: Ray's row of it."""
    return "node:__internal_head__" in row["Resources"]


def _ask(layout: Layout, nodes: dict[str, dict[str, Any]]) -> Placement:
    found = pack(layout, [_resources_of(name, row["Resources"]) for name, row in nodes.items()])
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


def _bundle(found: Assignment, pool: ResourcePool) -> dict[str, float]:
    """Return the resources of one slot of the pool."""
    unit = {"GPU": 1.0} if found.on_gpus else {"CPU": found.cpus}
    return unit | dict(pool.resources)


def _resources_of(name: str, resources: dict[str, float]) -> NodeResources:
    return NodeResources(
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
        f"{unit}s are free after {FREE_SECONDS:g} s. End what else runs on the cluster"
    )


@contextmanager
def _own_search_path() -> Iterator[None]:
    """Keep the directory of the program's file off the workers' search path, as `job_config` does.

    Ray puts it first there if this process searches it too.
    """
    before, own = list(sys.path), str(_program_directory())
    sys.path[:] = [place for place in before if place != own]
    try:
        yield
    finally:
        sys.path[:] = before


def _program_directory() -> Path:
    return Path(sys.argv[0]).resolve().parent


def job_config() -> Any:
    """Return a job configuration that keeps the working directory off the workers' search path.

    Ray puts that directory first, so a user's folder `trainer` or `env` would hide ours. Ray leaves
    it out for a job of its client, whose directory is on another machine.
    """
    from ray.job_config import JobConfig

    return JobConfig(_client_job=True)
