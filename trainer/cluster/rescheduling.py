"""Reschedules processes after the loss of a node: from their planned bundles to spare bundles.

A spare bundle is on any living node that has the same resources free. Processes that shared a
planned bundle share the spare bundle. All work of a lost node goes to one node if that has room:
of two spares, one takes the place. If no node has room, `try_reserve` leaves a request for it, and
the run continues meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from contract.journal import WriteEvent, print_event
from contract.launch.places import MOVED
from trainer.cluster import placement, reach
from trainer.cluster.placement import Placement, Reservation
from trainer.cluster.reach import Reach
from trainer.types import NoRoomError

SPARE_SECONDS = 5.0
"""Seconds until free resources are given. A dead process's resources are free after a second."""
TOGETHER_SECONDS = 2.0
"""Seconds for the same on the node that other work of the lost node has gone to."""
AGAIN_SECONDS = 30.0
"""Seconds until a request is made again, because other nodes may be reachable by then."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The node of a bundle."""

    group: Any
    """Ray's placement group."""
    index: int
    node: str
    """Ray's id of the node."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request for spare bundles."""

    group: Any
    """Ray's placement group."""
    nodes: frozenset[str]
    """The living nodes at the time of the request."""
    at: float
    """Time of a monotonic clock, in seconds."""
    patience: float
    """Seconds after which other nodes are asked."""


class Rescheduler:
    def __init__(self, planned: Placement, tell: WriteEvent = print_event) -> None:
        """`tell`: records which node goes on with the work of a lost one."""
        self._planned = planned
        self._tell = tell
        self._reach = Reach()
        self._told: set[tuple[str, str]] = set()
        self._heirs: dict[str, str] = {}
        """Ray's id of a lost node → that of the node on which its work goes on."""
        self._moved: dict[int, _Place] = {}
        """Planned bundle → the spare bundle that replaces it."""
        self._asked: dict[tuple[int, ...], _Asked] = {}
        """Planned bundles → the request for spare bundles."""

    def options(self, role: str, number: int) -> dict[str, Any]:
        """Return Ray's options for the process's actor.

        A tensor parallel engine on GPUs holds no GPU itself. vLLM starts its ranks as Ray actors,
        in the bundles that its environment names.
        """
        reserved = self._planned.reservation(role, number)
        places = self._places(reserved)
        parent = reserved.on_gpus and len(reserved.bundles) > 1
        options: dict[str, Any] = {
            "num_cpus": reserved.cpus,
            "num_gpus": reserved.fraction if reserved.on_gpus and not parent else 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                places[0].group,
                placement_group_bundle_index=places[0].index,
                placement_group_capture_child_tasks=parent,
            ),
        }
        if parent:
            environment = {
                "VLLM_RAY_BUNDLE_INDICES": ",".join(str(place.index) for place in places),
                "VLLM_RAY_PER_WORKER_GPUS": f"{reserved.fraction:g}",
            }
            options["runtime_env"] = {"env_vars": environment}
        return options

    def bundles(self, role: str, number: int) -> tuple[int, ...]:
        """Return the planned bundles of the process, one for each of its slots."""
        return self._planned.reservation(role, number).bundles

    def node_id(self, role: str, number: int) -> str:
        """Return Ray's id of the process's node."""
        return self._of(role, number)[0].node

    def node(self, role: str, number: int) -> str:
        """Return the name of the process's node."""
        own = self.node_id(role, number)
        return next((row["NodeName"] for row in ray.nodes() if row["NodeID"] == own), own)

    def node_lost(self, role: str, number: int) -> bool:
        """Whether a node of the process is lost."""
        nodes = {place.node for place in self._of(role, number)}
        return self._reach.reached(nodes) != nodes

    def reserve(self, role: str, number: int) -> None:
        """Move the process to spare bundles if its node is lost.

        Raises NoRoomError if no living node has room for all of its bundles together.
        """
        if not self.node_lost(role, number):
            if len({place.group.id for place in self._of(role, number)}) > 1:
                raise NoRoomError(f"the bundles of {role}-{number} are no longer on one node")
            return
        reserved = self._planned.reservation(role, number)
        for waiting in list(self._asked):  # this process is required, those are not
            self._withdraw(waiting)
        heir = self._heir(reserved)
        for nodes, seconds in ((heir, TOGETHER_SECONDS), (self._reach.reached(), SPARE_SECONDS)):
            group = self._ask(reserved, nodes) if nodes else None
            if group and group.wait(seconds):
                self._take(reserved, group)
                return
            if group:
                remove_placement_group(group)
        raise NoRoomError(f"no living node has {_wanted(reserved)} free for {role}-{number}")

    def try_reserve(self, role: str, number: int) -> bool:
        """Return whether a node has room for the process now.

        Never waits: a request of one call may be granted at the next."""
        if not self.node_lost(role, number):
            return True
        reserved, nodes = (
            self._planned.reservation(role, number),
            frozenset(placement.living_nodes()),
        )
        asked = self._asked.get(reserved.bundles)
        now = time.monotonic()
        if asked is None or asked.nodes != nodes or now - asked.at > asked.patience:
            self._withdraw(reserved.bundles)  # other nodes were reachable then
            heir = self._heir(reserved) if asked is None or asked.nodes != nodes else set()
            group = self._ask(reserved, heir or self._reach.reached())
            patience = TOGETHER_SECONDS if heir else AGAIN_SECONDS
            self._asked[reserved.bundles] = _Asked(group, nodes, now, patience)
            return False
        if placement_group_table(asked.group)["state"] != "CREATED":
            return False
        del self._asked[reserved.bundles]
        self._take(reserved, asked.group)
        return True

    def _heir(self, reserved: Reservation) -> set[str]:
        """Return the node that has other work of the same lost node, if it can be reached."""
        lost = self._place(reserved.bundles[0], reserved).node
        return self._reach.reached([self._heirs[lost]]) if lost in self._heirs else set()

    def _ask(self, reserved: Reservation, nodes: Iterable[str]) -> Any:
        """Request a placement group of spare bundles on one of the nodes."""
        # No spaces in the list: Ray would take them as parts of the ids.
        selector = {"ray.io/node-id": f"in({','.join(sorted(nodes))})"}
        return placement_group(
            [dict(reserved.resources)] * len(reserved.bundles),
            strategy="STRICT_PACK",
            bundle_label_selector=[selector] * len(reserved.bundles),
        )

    def _withdraw(self, bundles: tuple[int, ...]) -> None:
        if asked := self._asked.pop(bundles, None):
            remove_placement_group(asked.group)

    def _take(self, reserved: Reservation, group: Any) -> None:
        nodes = placement_group_table(group)["bundles_to_node_id"]
        for index, bundle in enumerate(reserved.bundles):
            lost = self._place(bundle, reserved).node
            self._heirs[lost] = nodes[index]
            self._tell_of_move(lost, nodes[index])
            before = self._moved.get(bundle)
            if before and not self._reach.reached([before.node]):
                remove_placement_group(before.group)  # else Ray moves its bundles to another node
            self._moved[bundle] = _Place(group, index, nodes[index])

    def _tell_of_move(self, before: str, now: str) -> None:
        """Record that work of a lost node goes on at another, once, and have Ray know the loss."""
        if before == now or (before, now) in self._told:
            return
        self._told.add((before, now))
        names = {row["NodeID"]: str(row["NodeName"]) for row in ray.nodes()}
        lost, node = names.get(before, before), names.get(now, now)
        self._tell(MOVED, f"the work of {lost} goes on at {node}.", lost=lost, node=node)
        reach.bury(before, f"the work of {lost} goes on at {node}")

    def _of(self, role: str, number: int) -> list[_Place]:
        return self._places(self._planned.reservation(role, number))

    def _places(self, reserved: Reservation) -> list[_Place]:
        return [self._place(bundle, reserved) for bundle in reserved.bundles]

    def _place(self, bundle: int, reserved: Reservation) -> _Place:
        """Return where the work of a planned bundle is now."""
        planned = _Place(self._planned.group, bundle, reserved.node)
        return self._moved.get(bundle, planned)


def _wanted(reserved: Reservation) -> str:
    count = len(reserved.bundles)
    return ", ".join(f"{n * count:g} {name}" for name, n in reserved.resources.items())
