"""Where each process of a run sits: in the bundles that were planned for it, or in spare ones.

Spare bundles are taken when a node is lost: on any living node that has as much free. Processes
that shared a bundle share the spare one. Who finds none can have them asked for, and goes on.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainer.cluster import placement
from trainer.cluster.placement import Placement, Seat
from trainer.types import NoSeatError

SPARE_SECONDS = 5.0
"""How long what is free may take to be given; what a dead process held is free after a second."""
REACH_SECONDS = 2.0
AGAIN_SECONDS = 30.0
"""After so long it is asked of other nodes, where some could not be reached before."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a bundle is."""

    group: Any
    """Ray's placement group."""
    index: int
    node: str
    """Ray's id of it."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Spare bundles that may come."""

    group: Any
    """Ray's placement group."""
    nodes: frozenset[str]
    """Those that were alive then."""
    at: float
    """A monotonic clock's seconds."""


class Rescheduler:
    def __init__(self, planned: Placement) -> None:
        self._planned = planned
        self._moved: dict[int, _Place] = {}
        """Bundle of the plan → the spare one in its place."""
        self._asked: dict[tuple[int, ...], _Asked] = {}
        """Bundles of the plan → the spare ones that were asked for in their place."""

    def options(self, role: str, number: int) -> dict[str, Any]:
        """Ray's options for the actor that sits there.

        A tensor parallel engine on GPUs is the parent of its ranks, as Ray actors in the bundles
        that vLLM finds in its environment, and holds no GPU itself.
        """
        seat = self._planned.seat(role, number)
        places = self._places(seat)
        parent = seat.on_gpus and len(seat.bundles) > 1
        options: dict[str, Any] = {
            "num_cpus": seat.cpus,
            "num_gpus": seat.fraction if seat.on_gpus and not parent else 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                places[0].group,
                placement_group_bundle_index=places[0].index,
                placement_group_capture_child_tasks=parent,
            ),
        }
        if parent:
            environment = {
                "VLLM_RAY_BUNDLE_INDICES": ",".join(str(place.index) for place in places),
                "VLLM_RAY_PER_WORKER_GPUS": f"{seat.fraction:g}",
            }
            options["runtime_env"] = {"env_vars": environment}
        return options

    def node(self, role: str, number: int) -> str:
        """The name of the node that it is on."""
        place = self._of(role, number)[0]
        return next((r["NodeName"] for r in ray.nodes() if r["NodeID"] == place.node), place.node)

    def node_lost(self, role: str, number: int) -> bool:
        """Whether the node that it is on is lost."""
        nodes, living = {place.node for place in self._of(role, number)}, placement.living_nodes()
        return not all(node in living and _reachable(living[node]) for node in nodes)

    def reserve(self, role: str, number: int) -> None:
        """Take spare bundles where those that it has are lost.

        Raises NoSeatError where no living node has them free, or they were given out one by one.
        """
        if not self.node_lost(role, number):
            if len({place.group.id for place in self._of(role, number)}) > 1:
                raise NoSeatError(f"what {role}-{number} had together lies apart by now")
            return
        seat = self._planned.seat(role, number)
        for waiting in list(self._asked):  # whoever can be done without comes after this one
            self._withdraw(waiting)
        group = self._ask(seat)
        if not group.wait(SPARE_SECONDS):
            remove_placement_group(group)
            raise NoSeatError(f"no living node has {_wanted(seat)} free for {role}-{number}")
        self._take(seat, group)

    def try_reserve(self, role: str, number: int) -> bool:
        """Whether there is a place for it by now. Waits for nothing: what is asked for at one call
        may be there at the next."""
        if not self.node_lost(role, number):
            return True
        seat, nodes = self._planned.seat(role, number), frozenset(placement.living_nodes())
        asked = self._asked.get(seat.bundles)
        now = time.monotonic()
        if asked is None or asked.nodes != nodes or now - asked.at > AGAIN_SECONDS:
            self._withdraw(seat.bundles)  # it was asked of others than can be reached by now
            self._asked[seat.bundles] = _Asked(self._ask(seat), nodes, now)
            return False
        if placement_group_table(asked.group)["state"] != "CREATED":
            return False
        del self._asked[seat.bundles]
        self._take(seat, asked.group)
        return True

    def _ask(self, seat: Seat) -> Any:
        """The placement group of spare bundles, on one of the nodes that can be reached."""
        there = [node for node, row in placement.living_nodes().items() if _reachable(row)]
        selector = {"ray.io/node-id": f"in({','.join(there)})"}  # a space would belong to a name
        return placement_group(
            [dict(seat.resources)] * len(seat.bundles),
            strategy="STRICT_PACK",
            bundle_label_selector=[selector] * len(seat.bundles),
        )

    def _withdraw(self, bundles: tuple[int, ...]) -> None:
        if asked := self._asked.pop(bundles, None):
            remove_placement_group(asked.group)

    def _take(self, seat: Seat, group: Any) -> None:
        nodes, living = placement_group_table(group)["bundles_to_node_id"], placement.living_nodes()
        for index, bundle in enumerate(seat.bundles):
            before = self._moved.get(bundle)
            if before and not (before.node in living and _reachable(living[before.node])):
                remove_placement_group(before.group)  # Ray would give its bundles another node
            self._moved[bundle] = _Place(group, index, nodes[index])

    def _of(self, role: str, number: int) -> list[_Place]:
        return self._places(self._planned.seat(role, number))

    def _places(self, seat: Seat) -> list[_Place]:
        planned = (_Place(self._planned.group, bundle, seat.node) for bundle in seat.bundles)
        return [self._moved.get(place.index, place) for place in planned]


def _wanted(seat: Seat) -> str:
    count = len(seat.bundles)
    return ", ".join(f"{n * count:g} {name}" for name, n in seat.resources.items())


def _reachable(row: Mapping[str, Any]) -> bool:
    """Whether the node's Ray takes connections: the cluster as a whole learns only later that it
    has died."""
    address = row["NodeManagerAddress"], row["NodeManagerPort"]
    try:
        socket.create_connection(address, timeout=REACH_SECONDS).close()
    except OSError:
        return False
    return True
