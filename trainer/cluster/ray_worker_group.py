"""Groups whose workers are Ray actors: the only place where an actor meets Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import ray

from trainer.cluster.calls import Behind, OfAllRanks, Remote
from trainer.cluster.heartbeat import Liveness
from trainer.cluster.host import Host
from trainer.cluster.placement import Placement
from trainer.cluster.rescheduling import Seating
from trainer.cluster.worker_group import BEHIND, Group, Pending
from trainer.types import Rank

W_co = TypeVar("W_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """What the workers of a group are, so that any of them can be started at any time."""

    role: str
    actor: str
    """module:Class"""
    count: int
    args: tuple[Any, ...]
    ranks: bool
    """Whether they hold one model together, and must find each other."""


class RayGroup(Group[W_co]):
    """Starts its workers at once, and anew where it is asked to."""

    def __init__(self, recipe: _Recipe, seating: Seating, timeout: float) -> None:
        self._recipe = recipe
        self._seating = seating
        self._timeout = timeout
        self._hosts: list[Any] = [None] * recipe.count
        self._built: list[Any] = [None] * recipe.count
        """References to what came of building each worker."""
        self._lives = 0
        self._start(range(recipe.count))

    def __len__(self) -> int:
        return len(self._hosts)

    def send(
        self,
        worker: int,
        method: Callable[Concatenate[W_co, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        reference = self._call(worker, method.__name__, args, kwargs)
        return Remote(reference, self._recipe.role, worker)

    def together(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        # Put once, read in place by every rank of a node.
        stored = args if len(self) == 1 else tuple(map(_stored, args))
        workers = range(len(self))
        calls = [self._call(worker, method.__name__, stored, kwargs) for worker in workers]
        return OfAllRanks(calls, self._recipe.role, self._liveness)

    @property
    def role(self) -> str:
        return self._recipe.role

    def first_of(self, pending: Sequence[Pending[Any]], seconds: float) -> None:
        references = [cast(Remote[Any], one).reference for one in pending]
        ray.wait(references, timeout=seconds, fetch_local=False)

    def alive(self, worker: int) -> Pending[None]:
        return Remote(self._hosts[worker].alive.remote(), self._recipe.role, worker)

    def up(self, worker: int, seconds: float) -> bool:
        return bool(ray.wait([self._built[worker]], timeout=seconds)[0])

    def stranded(self, worker: int) -> bool:
        return self._seating.lost(self._recipe.role, worker)

    def found(self, worker: int) -> bool:
        return self._seating.found(self._recipe.role, worker)

    def end(self, workers: Sequence[int]) -> None:
        for worker in workers:
            ray.kill(self._hosts[worker])

    def renew(self, workers: Sequence[int]) -> None:
        concerned = range(len(self)) if self._recipe.ranks else workers
        self.end(concerned)
        for worker in concerned:
            self._seating.secure(self._recipe.role, worker)
        self._start(concerned)

    def behind(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        calls = [
            actor.call_behind.remote(built, method.__name__, *args, **kwargs)
            for actor, built in zip(self._hosts, self._built, strict=True)
        ]
        return Behind(calls, self._recipe.role, self._asker())

    def _call(self, worker: int, method: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        return self._hosts[worker].call.remote(self._built[worker], method, *args, **kwargs)

    def _start(self, workers: Sequence[int]) -> None:
        recipe = self._recipe
        for worker in workers:
            self._hosts[worker] = self._host(worker)
        world = recipe.count if recipe.ranks else 1
        meeting = self._hosts[0].meet.remote(self._timeout) if world > 1 else None
        for worker in workers:
            host, args, joined = self._hosts[worker], recipe.args, None
            if recipe.ranks:
                rank = Rank(worker, world)
                args = (*args, rank)
                joined = host.join.remote(meeting, rank, self._timeout) if meeting else None
            self._built[worker] = host.build.remote(recipe.actor, args, joined)
        self._liveness = self._asker()
        self._lives += 1

    def _asker(self) -> Liveness:
        return Liveness(self._recipe.role, self._hosts, self._built, self._timeout)

    def _host(self, worker: int) -> Any:
        name = f"{self._recipe.role}-{worker}"
        kind = type(name, (Host,), {})  # processes are titled by it: ps and py-spy show the role
        # Ray keeps the name of one that was killed for a while.
        unique = f"{name} ({self._lives + 1})" if self._lives else name
        actor = ray.remote(concurrency_groups={"health": 1, "behind": BEHIND})(kind).options(
            name=unique, **self._seating.options(self._recipe.role, worker)
        )
        return actor.remote(name)


def _stored(argument: Any) -> Any:
    return argument if isinstance(argument, ray.ObjectRef) else ray.put(argument)


class RayLauncher:
    """Starts workers as Ray actors in the bundles of a placement."""

    def __init__(self, placement: Placement, timeout: float) -> None:
        """`timeout` in seconds: of a collective, and of a rank that does not answer."""
        self._seating = Seating(placement)
        self._timeout = timeout

    def launch(self, role: str, actor: str, count: int, *args: Any) -> Group[Any]:
        recipe = _Recipe(role=role, actor=actor, count=count, args=args, ranks=False)
        return RayGroup(recipe, self._seating, self._timeout)

    def launch_ranks(self, role: str, actor: str, count: int, *args: Any) -> Group[Any]:
        recipe = _Recipe(role=role, actor=actor, count=count, args=args, ranks=True)
        return RayGroup(recipe, self._seating, self._timeout)
