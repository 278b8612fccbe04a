"""The policy's newest weights to every rollout engine.

The policy gives out its weights part by part, and engines take a part while the policy prepares
the next one; the bytes travel from actor to actor, not through here, and to each node once. Every
wait has an end: an engine that did not answer is missing from then on, and the pool replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.actors.base import Policy
from trainer.actors.group import Group, Pending
from trainer.engine_pool import EnginePool
from trainer.engines.base import Engine, Memory
from trainer.shared import Parcel
from trainer.types import EngineFailedError, LostWorkerError, Names, TrainingError

POLICY = "policy"


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
                raise _late(self.place)
            bringer = self.route.bringers.get(self.route.nodes[engine], engine)
            if bringer not in engines.present:
                raise EngineFailedError(f"engine-{bringer}, which brought its weights, is lost")

        engines.answers(self.taken, engines.patience.part, self.place, blame=blame)


def weights(
    policy: Group[Policy], engines: EnginePool, version: int, *, wake: bool = False
) -> None:
    """Returns once every engine that is present has them; at least one is.

    `wake`: the engines may be asleep. Memory of their weights is taken before the weights come,
    that of the cache only afterwards.

    Raises LostWorkerError where the policy is lost, BeyondRepairError where no engine can be
    replaced.
    """
    committed = False
    while not committed:
        engines.welcome()
        try:
            _update(policy, engines, version, wake=wake)
        except TrainingError:
            raise
        except Exception:
            # What an engine says of a policy that died under it is not the cause.
            policy.first(Policy.node).result()
            raise
        committed = bool(engines.present)
    engines.committed()


def sleep(engines: EnginePool) -> None:
    """The engines' memory is free for others until the next weights come."""
    engines.answers(engines.ask(Engine.sleep), engines.patience.part, "going to sleep")


def _update(policy: Group[Policy], engines: EnginePool, version: int, *, wake: bool) -> None:
    what, patience = f"weights of version {version}", engines.patience
    if not policy.started(patience.start):
        raise _late("starting")
    asked = engines.ask(Engine.node), policy.first(Policy.node)
    offer = policy.together(Policy.offer)  # sharded weights are gathered by all ranks together
    homes = engines.answers(asked[0], patience.part, what)
    home = _answer(asked[1], patience.part, what)
    offered = _answer(offer, patience.part, what)[0]
    if wake:
        _wake(engines, "weights")
    route = _Route.of({engine: homes[engine] for engine in engines.present}, home)
    under_way = [
        _hand_over(policy, engines, names, route, f"{what}, part {number} of {len(offered)}")
        for number, names in enumerate(offered, start=1)
    ]
    for part in under_way:
        part.wait(engines)
    engines.answers(engines.ask(Engine.commit, version), patience.part, what)
    if wake:
        _wake(engines, "cache")


def _hand_over(
    policy: Group[Policy], engines: EnginePool, names: Names, route: _Route, place: str
) -> _Part:
    staged = policy.first(Policy.stage, names, abroad=bool(route.bringers))
    brought = {
        node: engines.send(engine, Engine.fetch, staged.handle)
        for node, engine in route.bringers.items()
    }
    taken = {
        engine: engines.send(engine, Engine.load, brought.get(node, staged).handle)
        for engine, node in route.nodes.items()
    }
    return _Part(place, route, staged, brought, taken)


def _wake(engines: EnginePool, memory: Memory) -> None:
    asked = engines.ask(Engine.wake, memory)
    engines.answers(asked, engines.patience.part, f"waking its {memory}")


def _answer(pending: Pending[Any], seconds: float, what: str) -> Any:
    """The policy's. Raises LostWorkerError where there is none in time."""
    if not pending.ready(seconds):
        raise _late(what)
    return pending.result()


def _late(what: str) -> LostWorkerError:
    how = "did not answer in time"
    return LostWorkerError(f"the policy {how}: {what}", POLICY, f"it {how}")
