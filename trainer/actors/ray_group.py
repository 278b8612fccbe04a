"""Groups whose workers are Ray actors: the only place where an actor meets Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainer.actors.group import Group, Pending, build
from trainer.placement import Placement
from trainer.types import TrainingError

W_co = TypeVar("W_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")


class _Remote(Generic[T]):
    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def result(self) -> T:
        try:
            return cast(T, ray.get(self._reference))
        except RayTaskError as error:
            if isinstance(error.cause, TrainingError):
                raise error.cause from None  # what it says is meant for people; where, is not
            raise

    @property
    def handle(self) -> T:
        # Ray replaces a reference among the arguments by its value, in the callee.
        return cast(T, self._reference)


class _Host:
    """The Ray actor that holds a worker of any role."""

    def __init__(self, role: str, actor: str, args: tuple[Any, ...]) -> None:
        self._role = role
        self._fault: TrainingError | None = None
        try:
            self._worker = build(actor, args)
        except TrainingError as error:
            # Told at the first call: Ray reports what a constructor raises as a sudden death.
            self._fault = error

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._fault is not None:
            raise self._fault
        return getattr(self._worker, method)(*args, **kwargs)

    def __repr__(self) -> str:
        return self._role


class RayGroup(Group[W_co]):
    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors

    def __len__(self) -> int:
        return len(self._actors)

    def send(
        self,
        worker: int,
        method: Callable[Concatenate[W_co, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        return _Remote(self._actors[worker].call.remote(method.__name__, *args, **kwargs))


class RayLauncher:
    """Starts workers as Ray actors in the bundles of a placement."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def launch(self, role: str, actor: str, count: int, *args: Any) -> Group[Any]:
        return RayGroup([self._start(f"{role}-{i}", actor, args) for i in range(count)])

    def _start(self, role: str, actor: str, args: tuple[Any, ...]) -> Any:
        strategy = PlacementGroupSchedulingStrategy(
            self._placement.group, placement_group_bundle_index=self._placement.next_bundle()
        )
        host = ray.remote(_Host).options(
            name=role, num_cpus=self._placement.cpus, scheduling_strategy=strategy
        )
        return host.remote(role, actor, args)
