"""The policy's newest weights to every rollout engine.

The policy gives out its weights part by part, and engines take a part while the policy prepares
the next one; the bytes travel from actor to actor, not through here, and to each node once. Every
wait has an end, and who did not answer is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.actors.base import Policy
from trainer.actors.group import Group, Pending
from trainer.engines.base import Engine, Memory
from trainer.shared import Parcel
from trainer.types import Names, TrainingError


@dataclass(frozen=True, slots=True)
class Patience:
    """How long who takes part in an update may take; seconds."""

    start: float = 1800.0
    """To load a model, before the first update."""
    part: float = 120.0
    """For one part of the weights, or to change the state."""


@dataclass(frozen=True, slots=True)
class _Route:
    nodes: list[str]
    """Of each engine."""
    bringers: dict[str, int]
    """Node that is not the policy's → the engine that brings the weights there."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part under way: from the policy, to the node of each engine, into each engine."""

    place: str
    route: _Route
    staged: Pending[Parcel]
    brought: dict[str, Pending[Parcel]]
    """To each node that is not the policy's."""
    taken: list[Pending[None]]
    """By each engine."""

    def wait(self, seconds: float) -> None:
        for number, taken in enumerate(self.taken):
            if taken.ready(seconds):
                taken.result()
                continue
            late = self._late(number)
            raise TrainingError(f"{late} did not answer within {seconds:g} s: {self.place}")

    def _late(self, engine: int) -> str:
        """Who keeps `engine` waiting: itself, or who it has the part from."""
        if not self.staged.ready(0):
            return "the policy"
        node = self.route.nodes[engine]
        if node in self.brought and not self.brought[node].ready(0):
            return f"engine-{self.route.bringers[node]}"
        return f"engine-{engine}"


def weights(
    policy: Group[Policy],
    engines: Group[Engine],
    version: int,
    *,
    wake: bool = False,
    patience: Patience = Patience(),
) -> None:
    """Returns once every engine has them. Raises TrainingError where one does not answer.

    `wake`: the engines may be asleep. Memory of their weights is taken before the weights come,
    that of the cache only afterwards.
    """
    what = f"weights of version {version}"
    asked = engines.all(Engine.node), [policy.first(Policy.node)]
    offer = policy.together(Policy.offer)  # sharded weights are gathered by all ranks together
    homes = _answers(asked[0], "engine", patience.start, "starting")
    (home,) = _answers(asked[1], "policy", patience.start, "starting")
    offered = _answers([offer], "policy", patience.part, what)[0][0]
    if wake:
        _wake(engines, "weights", patience)
    route = _Route(homes, {node: homes.index(node) for node in homes if node != home})
    under_way = [
        _hand_over(policy, engines, names, route, f"{what}, part {number} of {len(offered)}")
        for number, names in enumerate(offered, start=1)
    ]
    for part in under_way:
        part.wait(patience.part)
    _answers(engines.all(Engine.commit, version), "engine", patience.part, what)
    if wake:
        _wake(engines, "cache", patience)


def sleep(engines: Group[Engine], patience: Patience = Patience()) -> None:
    """The engines' memory is free for others until the next weights come."""
    _answers(engines.all(Engine.sleep), "engine", patience.part, "going to sleep")


def _hand_over(
    policy: Group[Policy], engines: Group[Engine], names: Names, route: _Route, place: str
) -> _Part:
    staged = policy.first(Policy.stage, names, abroad=bool(route.bringers))
    brought = {
        node: engines.send(engine, Engine.fetch, staged.handle)
        for node, engine in route.bringers.items()
    }
    taken = [
        engines.send(number, Engine.load, brought.get(node, staged).handle)
        for number, node in enumerate(route.nodes)
    ]
    return _Part(place, route, staged, brought, taken)


def _wake(engines: Group[Engine], memory: Memory, patience: Patience) -> None:
    _answers(engines.all(Engine.wake, memory), "engine", patience.part, f"waking its {memory}")


def _answers(pending: list[Pending[Any]], role: str, seconds: float, what: str) -> list[Any]:
    """Everyone's outcome. Raises TrainingError that names who did not answer in time."""
    for number, one in enumerate(pending):
        if not one.ready(seconds):
            raise TrainingError(f"{role}-{number} did not answer within {seconds:g} s: {what}")
    return [one.result() for one in pending]
