"""Groups whose workers are Ray actors: the only place where an actor meets Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import ray
from ray.exceptions import RayError, RayTaskError

from trainer.cluster import tcp_stream
from trainer.cluster.calls import Remote, received
from trainer.cluster.heartbeat import Liveness
from trainer.cluster.placement import Placement
from trainer.cluster.rescheduling import Seating
from trainer.cluster.worker_group import BEHIND, Group, Pending, build
from trainer.types import Rank


class Host:
    """Made before its worker is, so that others can be told where it is."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._worker: Any = None
        self._meeting: Any = None

    def meet(self, timeout: float) -> tuple[str, int]:
        """Where the ranks of this worker's model find each other; asked of the first alone."""
        from trainer.cluster.rendezvous import Meeting

        self._meeting = Meeting(ray.util.get_node_ip_address(), timeout)
        address: tuple[str, int] = self._meeting.address
        return address

    def join(self, address: tuple[str, int], rank: Rank, timeout: float) -> None:
        from trainer.cluster import rendezvous

        rendezvous.join(address, rank, ray.util.get_node_ip_address(), timeout)

    def build(self, actor: str, args: tuple[Any, ...], joined: None = None) -> str:
        """Returns where the worker is. Fails where `joined`, what came of `join`, has failed."""
        address = ray.util.get_node_ip_address()
        os.environ.setdefault(tcp_stream.ADDRESS, address)
        self._worker = build(actor, args)
        return f"node {address}, process {os.getpid()}"

    def call(self, built: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """`built` is what came of `build`: where that failed, so does this, with its error."""
        return getattr(self._worker, method)(*args, **kwargs)

    @ray.method(concurrency_group="behind")  # type: ignore[untyped-decorator]
    def call_behind(self, built: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """The same in a thread of its own."""
        return getattr(self._worker, method)(*args, **kwargs)

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def alive(self) -> None:
        """Answers while the worker computes; not where its process has been stopped."""

    def __repr__(self) -> str:
        return self._name


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


class OfAllRanks(Generic[T]):
    """One call on all ranks: it fails with the first of them, and when one no longer answers."""

    def __init__(self, references: Sequence[Any], role: str, liveness: Liveness) -> None:
        self._references = references
        self._role = role
        self._liveness = liveness

    def result(self) -> list[T]:
        waiting = list(self._references)
        self._liveness.begin()
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=self._liveness.interval)
            for reference in done:
                self._check(reference)
            self._liveness.check()
        return [ray.get(reference) for reference in self._references]

    def ready(self, seconds: float) -> bool:
        late, until = list(self._references), time.monotonic() + seconds
        self._liveness.begin()
        while late:
            left = max(0.0, until - time.monotonic())
            look = min(left, self._liveness.interval)
            _, late = ray.wait(late, num_returns=len(late), timeout=look)
            if late and not left:
                self._liveness.blame(f"within {seconds:g} s")
                return False
            if late:
                self._liveness.check()
        return True

    def _check(self, reference: Any) -> None:
        """Raises where the call failed: names the rank that is at fault if it has gone silent."""
        try:
            received(reference, self._role, self._references.index(reference))
        except RayTaskError as error:
            self._liveness.blame(f"while another failed ({str(error).splitlines()[-1]})")
            raise

    @property
    def handle(self) -> list[T]:
        return cast(list[T], self._references)


class Behind(OfAllRanks[T]):
    """One that is looked at now and then: a rank that is busy with something else is not silent.

    Who waits for it may be another thread than waits for the rest: `liveness` is its own.
    """

    def ready(self, seconds: float) -> bool:
        waiting = list(self._references)
        done, late = ray.wait(waiting, num_returns=len(waiting), timeout=seconds)
        return not late or any(_failed(reference) for reference in done)


def _failed(reference: Any) -> bool:
    try:
        ray.get(reference)
    except RayError:
        return True
    return False


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
