"""The policy's newest weights to every rollout engine.

The policy gives out its weights part by part, and engines take a part while the policy prepares
the next one; the bytes travel from actor to actor, not through here. Every wait has an end, and
who did not answer is named.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from trainer.actors.base import Policy
from trainer.actors.group import Group, Pending
from trainer.engines.base import Engine, Memory
from trainer.types import Names, TrainingError

AHEAD = 4
"""Parts under way to other nodes, where each holds memory of its own."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long who takes part in an update may take; seconds."""

    start: float = 1800.0
    """To load a model, before the first update."""
    part: float = 120.0
    """For one part of the weights, or to change the state."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part under way: what the policy gives to whom, and who has taken it."""

    place: str
    given: list[Pending[Any]]
    taken: list[Pending[None]]

    def wait(self, seconds: float) -> None:
        for number, taken in enumerate(self.taken):
            if taken.ready(seconds):
                taken.result()
                continue
            silent = all(given.ready(0) for given in self.given)
            who = f"engine-{number}" if silent else "the policy"
            raise TrainingError(f"{who} did not answer within {seconds:g} s: {self.place}")


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
    near = [one == home for one in homes]
    under_way: deque[_Part] = deque()
    for number, names in enumerate(offered, start=1):
        place = f"{what}, part {number} of {len(offered)}"
        under_way.append(_hand_over(policy, engines, names, near, place))
        if len(under_way) > AHEAD and not all(near):
            under_way.popleft().wait(patience.part)
    for part in under_way:
        part.wait(patience.part)
    _answers(engines.all(Engine.commit, version), "engine", patience.part, what)
    if wake:
        _wake(engines, "cache", patience)


def sleep(engines: Group[Engine], patience: Patience = Patience()) -> None:
    """The engines' memory is free for others until the next weights come."""
    _answers(engines.all(Engine.sleep), "engine", patience.part, "going to sleep")


def _hand_over(
    policy: Group[Policy], engines: Group[Engine], names: Names, near: list[bool], place: str
) -> _Part:
    """Through shared memory to engines on the policy's node, through Ray to the others."""
    given: dict[bool, Pending[Any]] = {}
    if any(near):
        given[True] = policy.first(Policy.stage, names)
    if not all(near):
        given[False] = policy.first(Policy.weights, names)
    taken = [
        engines.send(number, Engine.load, given[is_near].handle)
        for number, is_near in enumerate(near)
    ]
    return _Part(place, list(given.values()), taken)


def _wake(engines: Group[Engine], memory: Memory, patience: Patience) -> None:
    _answers(engines.all(Engine.wake, memory), "engine", patience.part, f"waking its {memory}")


def _answers(pending: list[Pending[Any]], role: str, seconds: float, what: str) -> list[Any]:
    """Everyone's outcome. Raises TrainingError that names who did not answer in time."""
    for number, one in enumerate(pending):
        if not one.ready(seconds):
            raise TrainingError(f"{role}-{number} did not answer within {seconds:g} s: {what}")
    return [one.result() for one in pending]
