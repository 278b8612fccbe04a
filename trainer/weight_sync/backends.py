"""The ways on which parts of the policy's weights get to the engines, as the driver sees to them.

Which of them a run takes is for `sync` to say. On each, whoever keeps another waiting is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from trainer.cluster.restarts import Patience, silent
from trainer.cluster.shared_memory import Parcel, Part
from trainer.cluster.worker_group import Pending, WorkerGroup
from trainer.rollout.engine import Engine, GPUEngine
from trainer.rollout.engine_pool import EnginePool
from trainer.types import BrokenGroupError, EngineFailedError, LostWorkerError
from trainer.weight_sync import choose
from trainer.workers.protocols import Policy

T = TypeVar("T")

POLICY = "policy"
GRACE = 5.0
"""Seconds for those who waited with another to say so, once all have given up."""


@dataclass(frozen=True, slots=True)
class Journey:
    """One version under way."""

    policy: WorkerGroup[Policy]
    engines: EnginePool
    what: str

    @property
    def patience(self) -> Patience:
        return self.engines.patience

    def answer(self, pending: Pending[T], place: str = "", more: float = 0.0) -> T:
        """The policy's, for whom `more` seconds are added. Raises LostWorkerError where there is
        none in time."""
        if not pending.ready(self.patience.part + more):
            raise late(place or self.what)
        return pending.result()

    def answers(self, asked: Mapping[int, Pending[T]], place: str = "") -> dict[int, T]:
        """Of the engines; those that do not answer in time are missing from then on."""
        return self.engines.answers(asked, self.patience.part, place or self.what)

    def places(self, parts: list[Part]) -> Iterator[tuple[str, Part]]:
        """Each part, and how it is called."""
        for number, part in enumerate(parts, start=1):
            yield f"{self.what}, part {number} of {len(parts)}", part


class Way(Protocol):
    """What is raised of engines is BrokenGroupError where all must begin anew without some."""

    def prepare(self) -> None:
        """Find out who is where."""

    def offered(self) -> list[Part]:
        """The policy's newest weights."""

    def carry(self, parts: list[Part]) -> None:
        """Every engine that is present has them when it returns; they have begun to take them."""

    def finish(self) -> None:
        """Engines compute with them."""


class _FromPolicy:
    """What all ways have in common: all ranks of the policy have a part in it."""

    def __init__(self, journey: Journey) -> None:
        self._journey = journey

    def finish(self) -> None:
        self._journey.answer(self._journey.policy.call_ranks(Policy.withdraw))


class InSharedMemory(_FromPolicy):
    """To each node once, and from there into each engine; a part while the next is prepared."""

    def prepare(self) -> None:
        journey = self._journey
        asked = journey.engines.ask(Engine.node), journey.policy.call_rank0(Policy.node)
        self._nodes = journey.answers(asked[0])
        self._home = journey.answer(asked[1])

    def offered(self) -> list[Part]:
        # Sharded weights are gathered by all ranks together.
        return self._journey.answer(self._journey.policy.call_ranks(Policy.offer))[0]

    def carry(self, parts: list[Part]) -> None:
        journey = self._journey
        nodes = {engine: self._nodes[engine] for engine in journey.engines.present}
        route = _Route.of(nodes, self._home)
        for part in [_hand_over(journey, part, route, at) for at, part in journey.places(parts)]:
            part.wait(journey.engines)


class _FromGPUs(_FromPolicy):
    """From every rank's own memory."""

    def offered(self) -> list[Part]:
        return self._journey.answer(self._journey.policy.call_ranks(Policy.announce))[0]


class ByBroadcast(_FromGPUs):
    """From the policy's first rank to every GPU of every engine at once.

    The group of them stands from one version to the next, and is formed anew where an engine or the
    policy is another process than it was.
    """

    def prepare(self) -> None:
        journey = self._journey
        members = journey.answers(journey.engines.ask(GPUEngine.member))
        self._members = members.keys()
        if not members:
            raise BrokenGroupError("no engine is left to send weights to")
        meeting = journey.answer(
            journey.policy.call_rank0(Policy.meet, tuple(members.values())), "its weights' group"
        )
        if meeting is None:
            return
        place = f"joining the weights' group at {meeting.host}, port {meeting.port}"
        gathered = journey.policy.call_rank0(Policy.gather, journey.patience.part)
        seats = zip(members, meeting.seats(), strict=True)
        joined = {one: journey.engines.send(one, GPUEngine.join, seat) for one, seat in seats}
        self._settle(gathered, joined, place)

    def carry(self, parts: list[Part]) -> None:
        policy, engines = self._journey.policy, self._journey.engines
        for place, part in self._journey.places(parts):
            if self._members != set(engines.present):
                raise BrokenGroupError(f"an engine was lost before {place}")
            sent = policy.call_ranks(Policy.broadcast, part, self._journey.patience.part)
            self._settle(sent, engines.ask(GPUEngine.receive, part), place)

    def _settle(self, ours: Pending[Any], theirs: Mapping[int, Pending[None]], place: str) -> None:
        """Wait for what policy and engines do together."""
        try:
            self._journey.answer(ours, place, more=2 * GRACE)  # it gives up before
        except BrokenGroupError:
            self._name_those_late(theirs, place)
            raise
        self._journey.answers(theirs, place)

    def _name_those_late(self, asked: Mapping[int, Pending[None]], place: str) -> None:
        engines, late = self._journey.engines, {}
        for engine, pending in asked.items():
            if not pending.ready(GRACE):
                late[engine] = engines.alive(engine).ready(GRACE)
                continue
            try:
                pending.result()
            except (LostWorkerError, EngineFailedError) as loss:
                engines.lose(engine, loss)
            except BrokenGroupError:
                pass  # it waited in vain, and could leave
        for engine, how in choose.blamed(late).items():
            how_long = f"within {self._journey.patience.part:g} s: {place}"
            why = silent(f"engine-{engine}", "engine", how_long)
            engines.lose(engine, EngineFailedError(f"it {how}: {place}") if how else why)


class ByLending(_FromGPUs):
    """From each rank of the policy to the engines on its own GPU, one part at a time."""

    def prepare(self) -> None:
        pass

    def carry(self, parts: list[Part]) -> None:
        journey = self._journey
        for place, part in journey.places(parts):
            lent = journey.answer(journey.policy.call_ranks(Policy.lend, part), place)
            journey.answers(journey.engines.ask(GPUEngine.borrow, lent), place)


WAYS: Mapping[str, Callable[[Journey], Way]] = {
    "auto": InSharedMemory,
    "shared_memory": InSharedMemory,
    "nccl": ByBroadcast,
    "ipc": ByLending,
}
"""`auto` is settled by the slots of a run; without any it is what always works."""


@dataclass(frozen=True, slots=True)
class _Route:
    nodes: Mapping[int, str]
    """Of each engine."""
    bringers: Mapping[str, int]
    """Node that is not the policy's → the engine that brings the weights there."""

    @classmethod
    def of(cls, nodes: Mapping[int, str], home: str) -> _Route:
        """`home`: the policy's node."""
        last_first = sorted(nodes.items(), reverse=True)
        return cls(nodes, {node: engine for engine, node in last_first if node != home})


@dataclass(frozen=True, slots=True)
class _Part:
    """A part under way: from the policy, to the node of each engine, into each engine."""

    place: str
    route: _Route
    staged: Pending[Parcel]
    brought: Mapping[str, Pending[Parcel]]
    """To each node that is not the policy's."""
    taken: Mapping[int, Pending[None]]
    """By each engine."""

    def wait(self, engines: EnginePool) -> None:
        def blame(engine: int) -> None:
            """Raises where another keeps `engine` waiting, or has died under it.

            Who brings weights to a node is its first engine, and was looked at before.
            """
            if not self.staged.ready(0):
                raise late(self.place)
            bringer = self.route.bringers.get(self.route.nodes[engine], engine)
            if bringer not in engines.present:
                raise EngineFailedError(f"engine-{bringer}, which brought its weights, is lost")

        engines.answers(self.taken, engines.patience.part, self.place, blame=blame)


def _hand_over(journey: Journey, part: Part, route: _Route, place: str) -> _Part:
    engines = journey.engines
    staged = journey.policy.call_rank0(Policy.stage, part, abroad=bool(route.bringers))
    brought = {
        node: engines.send(engine, Engine.fetch, staged.handle)
        for node, engine in route.bringers.items()
    }
    taken = {
        engine: engines.send(engine, Engine.load, brought.get(node, staged).handle)
        for engine, node in route.nodes.items()
    }
    return _Part(place, route, staged, brought, taken)


def late(what: str) -> LostWorkerError:
    how = "did not answer in time"
    return LostWorkerError(f"the policy {how}: {what}", POLICY, f"it {how}")
