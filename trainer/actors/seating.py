"""Where each process of a run sits: in the bundles that were planned for it, or in spare ones.

Spare bundles are taken when a node is lost: on any living node that has as much free. Processes
that shared a bundle share the spare one.
"""

from __future__ import annotations

import socket
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

from trainer import placement
from trainer.placement import Placement, Seat
from trainer.types import NoSeatError

SPARE_SECONDS = 5.0
"""How long what is free may take to be given; what a dead process held is free after a second."""
REACH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a bundle is."""

    group: Any
    """Ray's placement group."""
    index: int
    node: str
    """Ray's id of it."""


class Seating:
    def __init__(self, planned: Placement) -> None:
        self._planned = planned
        self._moved: dict[int, _Place] = {}
        """Bundle of the plan → the spare one in its place."""

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
        place = self._places(self._planned.seat(role, number))[0]
        return next((r["NodeName"] for r in ray.nodes() if r["NodeID"] == place.node), place.node)

    def lost(self, role: str, number: int) -> bool:
        """Whether the node that it is on is lost."""
        (node,) = {place.node for place in self._places(self._planned.seat(role, number))}
        row = placement.living_nodes().get(node)
        return row is None or not _reachable(row)

    def secure(self, role: str, number: int) -> None:
        """Take spare bundles where those that it has are lost.

        Raises NoSeatError where no living node has them free.
        """
        if not self.lost(role, number):
            return
        seat = self._planned.seat(role, number)
        bundles = [dict(seat.resources)] * len(seat.bundles)
        there = [node for node, row in placement.living_nodes().items() if _reachable(row)]
        group = placement_group(
            bundles,
            strategy="STRICT_PACK",
            bundle_label_selector=[{"ray.io/node-id": f"in({', '.join(there)})"}] * len(bundles),
        )
        if not group.wait(SPARE_SECONDS):
            remove_placement_group(group)
            wanted = ", ".join(f"{n * len(bundles):g} {name}" for name, n in seat.resources.items())
            raise NoSeatError(f"no living node has {wanted} free for {role}-{number}")
        nodes = placement_group_table(group)["bundles_to_node_id"]
        for index, bundle in enumerate(seat.bundles):
            self._moved[bundle] = _Place(group, index, nodes[index])

    def _places(self, seat: Seat) -> list[_Place]:
        planned = (_Place(self._planned.group, bundle, seat.node) for bundle in seat.bundles)
        return [self._moved.get(place.index, place) for place in planned]


def _reachable(row: Mapping[str, Any]) -> bool:
    """Whether the node's Ray takes connections: the cluster as a whole learns only later that it
    has died."""
    address = row["NodeManagerAddress"], row["NodeManagerPort"]
    try:
        socket.create_connection(address, timeout=REACH_SECONDS).close()
    except OSError:
        return False
    return True
