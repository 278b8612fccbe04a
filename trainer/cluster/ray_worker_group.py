"""Worker groups of Ray actors: the only module in which a worker meets Ray.

A worker starts in two levels. Ray first starts a `WorkerHost`, an empty actor, and the host then
builds the worker inside itself. The reasons:

- Ranks of one model must know an address of rank 0 before they load the model. Rank 0's host picks
  that address in `meet`, and every host connects there in `join`. Only then does `build` begin.
- Neither the driver nor another rank waits for these calls. The result of `meet` is an argument of
  `join`, the result of `join` an argument of `build`, and the result of `build` the first argument
  of every later call. Ray runs a call once its arguments exist, so models of all roles load at the
  same time, and the driver can already send calls.
- If a rank fails to load, its `build` fails. Ray then fails each later call with the error of
  `build`, because `build`'s result is an argument. The error names the cause, not a missing worker.
- A host has own threads for `alive` and for background calls. It answers `alive` while the worker
  loads or computes, so silence means a stopped process.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import ray
from ray.exceptions import ActorAlreadyExistsError, RayError, RayTaskError

from contract.journal import WriteEvent, print_event
from trainer.cluster.calls import RayPending, received
from trainer.cluster.heartbeat import GroupHeartbeat
from trainer.cluster.placement import Placement
from trainer.cluster.rescheduling import Rescheduler
from trainer.cluster.standby import StandbyRanks
from trainer.cluster.worker_group import (
    BACKGROUND_CALLS,
    Each,
    Kept,
    Pending,
    WorkerGroup,
)
from trainer.cluster.worker_host import WorkerHost
from trainer.types import CorruptedRankError, LostWorkerError, Rank

W_co = TypeVar("W_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """What the group needs to start any of its workers, at any time."""

    role: str
    actor: str
    """module:Class"""
    count: int
    args: tuple[Any, ...]
    ranks: bool
    """The workers hold one model together, and must find each other."""


class RayWorkerGroup(WorkerGroup[W_co]):
    """Starts all workers when it is made, and restarts workers when asked."""

    def __init__(
        self,
        recipe: _Recipe,
        rescheduler: Rescheduler,
        standby: StandbyRanks,
        timeout: float,
        tell: WriteEvent = print_event,
    ) -> None:
        self._recipe = recipe
        self._rescheduler = rescheduler
        self._standby = standby
        self._timeout = timeout
        self._tell = tell
        self._hosts: list[Any] = [None] * recipe.count
        self._built: list[Any] = [None] * recipe.count
        """References to the results of `build`."""
        self._starts = 0
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
        return RayPending(reference, self._recipe.role, worker)

    def call_ranks(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        stored = self._stored(args)
        calls = [
            self._call(worker, method.__name__, own, kwargs) for worker, own in enumerate(stored)
        ]
        return _RanksPending(calls, self._recipe.role, self._heartbeat)

    def call_each_rank_after(
        self,
        earlier: Sequence[Sequence[Pending[Any]]],
        method: Callable[Concatenate[W_co, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[list[T]]:
        stored, calls = self._stored(args), []
        for worker, awaited in enumerate(map(_references, earlier)):
            own = stored[worker]
            if not awaited:
                calls.append(self._call(worker, method.__name__, own, kwargs))
                continue
            # Ray would resolve a reference that is an argument; those in a list stay references.
            call = self._hosts[worker].call_after.remote
            calls.append(call(self._built[worker], awaited, method.__name__, *own, **kwargs))
        return _RanksPending(calls, self._recipe.role, self._heartbeat)

    def call_ranks_keeping(
        self,
        earlier: Pending[list[Any]] | None,
        items: int,
        method: Callable[Concatenate[W_co, P], list[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Kept[T]:
        stored, found = self._stored(args), []
        awaited = _references([earlier] if earlier else [])
        for host, built, own in zip(self._hosts, self._built, stored, strict=True):
            call = host.call_keeping.options(num_returns=1 + items).remote
            found.append(call(built, awaited, method.__name__, *own, **kwargs))
        ended = [references[0] for references in found]
        return Kept(
            _RanksPending(ended, self._recipe.role, self._heartbeat),
            [references[1:] for references in found],
        )

    def store(self, value: T) -> T:
        return cast(T, ray.put(value))

    def _stored(self, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Store what all ranks get once: those of a node then read the same copy. Returns the
        arguments of each rank."""
        if len(self) > 1:
            args = tuple(map(_stored, args))
        return [
            tuple(one[worker] if isinstance(one, Each) else one for one in args)
            for worker in range(len(self))
        ]

    def call_background(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        calls = [
            host.call_background.remote(built, method.__name__, *args, **kwargs)
            for host, built in zip(self._hosts, self._built, strict=True)
        ]
        return _BackgroundPending(calls, self._recipe.role, self._new_heartbeat())

    @property
    def role(self) -> str:
        return self._recipe.role

    def wait_any(self, pending: Sequence[Pending[Any]], seconds: float) -> None:
        references = [cast(RayPending[Any], call).reference for call in pending]
        ray.wait(references, timeout=seconds, fetch_local=False)

    def alive(self, worker: int) -> Pending[None]:
        return RayPending(self._hosts[worker].alive.remote(), self._recipe.role, worker)

    def has_started(self, worker: int, seconds: float) -> bool:
        return bool(ray.wait([self._built[worker]], timeout=seconds)[0])

    def node_lost(self, worker: int) -> bool:
        return self._rescheduler.node_lost(self._recipe.role, worker)

    def try_reserve(self, worker: int) -> bool:
        return self._rescheduler.try_reserve(self._recipe.role, worker)

    def kill(self, workers: Sequence[int]) -> None:
        for worker in workers:
            ray.kill(self._hosts[worker])

    def restart(self, workers: Sequence[int]) -> None:
        restarted = range(len(self)) if self._recipe.ranks else workers
        self.kill(restarted)
        for worker in restarted:
            self._rescheduler.reserve(self._recipe.role, worker)
        self._start(restarted)

    def _call(self, worker: int, method: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        return self._hosts[worker].call.remote(self._built[worker], method, *args, **kwargs)

    def _start(self, workers: Sequence[int]) -> None:
        recipe = self._recipe
        for worker in workers:
            self._hosts[worker] = self._host(worker)
            # All import at once; `join` and `build` would first wait for another worker.
            self._hosts[worker].load.remote(recipe.actor)
        world = recipe.count if recipe.ranks else 1
        address = self._hosts[0].meet.remote(self._timeout) if world > 1 else None
        newest: dict[int, Any] = {}
        """Bundle → result of the newest worker's `build` there. Engines that share a GPU start one
        after the other, because each counts the memory that is free while it loads."""
        for worker in workers:
            host, args = self._hosts[worker], recipe.args
            bundles = self._rescheduler.bundles(recipe.role, worker)
            before = next((newest[bundle] for bundle in bundles if bundle in newest), None)
            if recipe.ranks:
                rank = Rank(worker, world)
                args = (*args, rank)
                before = host.join.remote(address, rank, self._timeout) if address else None
            self._built[worker] = host.build.remote(recipe.actor, args, before)
            newest |= dict.fromkeys(bundles, self._built[worker])
        self._heartbeat = self._new_heartbeat()
        self._starts += 1

    def _new_heartbeat(self) -> GroupHeartbeat:
        recipe = self._recipe
        return GroupHeartbeat(recipe.role, self._hosts, self._built, self._timeout, self._tell)

    def _host(self, worker: int) -> Any:
        name = f"{self._recipe.role}-{worker}"
        kind = type(name, (WorkerHost,), {})  # Ray titles the process by it, for ps and py-spy
        unique = f"{name} ({self._starts + 1})" if self._starts else name
        options = self._rescheduler.options(self._recipe.role, worker)
        if "runtime_env" not in options:
            node = self._rescheduler.node_id(self._recipe.role, worker)
            options |= self._standby.take(self._recipe.role, worker, node)
        actor = ray.remote(concurrency_groups={"health": 1, "background": BACKGROUND_CALLS})(kind)
        try:
            return actor.options(name=unique, **options).remote(name)
        except ActorAlreadyExistsError:  # Ray keeps the name of a killed actor for a while
            unique = f"{name} ({uuid.uuid4().hex[:8]})"
            return actor.options(name=unique, **options).remote(name)


class _RanksPending(Generic[T]):
    """One call on all ranks: fails when the first rank fails, or when a rank stops answering."""

    def __init__(self, references: Sequence[Any], role: str, heartbeat: GroupHeartbeat) -> None:
        self._references = references
        self._role = role
        self._heartbeat = heartbeat

    def result(self) -> list[T]:
        waiting = list(self._references)
        self._heartbeat.begin()
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=self._heartbeat.interval)
            for reference in done:
                self._check(reference, waiting)
            self._heartbeat.check()
        return [ray.get(reference) for reference in self._references]

    def ready(self, seconds: float) -> bool:
        late, until = list(self._references), time.monotonic() + seconds
        self._heartbeat.begin()
        while late:
            left = max(0.0, until - time.monotonic())
            timeout = min(left, self._heartbeat.interval)
            _, late = ray.wait(late, num_returns=len(late), timeout=timeout)
            if late and not left:
                self._heartbeat.blame(f"within {seconds:g} s")
                return False
            if late:
                self._heartbeat.check()
        return True

    def _check(self, reference: Any, waiting: Sequence[Any]) -> None:
        """Raises the call's error, or that of the rank that caused it.

        `received` raises for a killed process; heartbeats find a process that is stopped, or that
        the others wait for. `waiting`: the calls that still run.
        """
        worker = self._references.index(reference)
        try:
            received(reference, self._role, worker)
        except CorruptedRankError as error:
            place = self._heartbeat.place(error.rank)
            raise (error.at(place) if place else error) from None
        except RayTaskError as error:
            last = str(error).splitlines()[-1]
            self._heartbeat.blame(f"while another failed ({last})")
            late = [self._references.index(call) for call in waiting]
            self._heartbeat.blame_behind(worker, late, last)
            raise
        except LostWorkerError as loss:
            raise self._heartbeat.lost(loss) from None

    @property
    def handle(self) -> list[T]:
        return cast(list[T], self._references)


class _BackgroundPending(_RanksPending[T]):
    """A call beside the ranks' other work: a rank that is busy with that work is not silent.

    Its heartbeat is not shared, because another thread than the loop's may wait for the call.
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


def _references(pending: Sequence[Pending[Any]]) -> list[Any]:
    """Return the references of calls; a call of all ranks has one for each."""
    handles = [one.handle for one in pending]
    return [ref for one in handles for ref in (one if isinstance(one, list) else [one])]


def _stored(argument: Any) -> Any:
    return argument if isinstance(argument, (ray.ObjectRef, Each)) else ray.put(argument)


class RayLauncher:
    """Starts workers as Ray actors in the bundles of a placement."""

    def __init__(
        self,
        placement: Placement,
        timeout: float,
        standby: StandbyRanks | None = None,
        tell: WriteEvent = print_event,
    ) -> None:
        """`timeout`: seconds until a collective fails, and until a silent rank counts as lost.

        `tell`: records ranks that others wait for, and where the work of a lost node goes on.
        """
        self._rescheduler = Rescheduler(placement, tell)
        self._standby = standby or StandbyRanks()
        self._timeout = timeout
        self._tell = tell
        found = placement.assignment
        pools = found.layout.pools if found.on_gpus else ()
        self.pools: Mapping[str, str] = {g.role: pool.name for pool in pools for g in pool.groups}

    def launch(self, role: str, actor: str, count: int, *args: Any) -> WorkerGroup[Any]:
        recipe = _Recipe(role=role, actor=actor, count=count, args=args, ranks=False)
        return self._group(recipe)

    def launch_ranks(self, role: str, actor: str, count: int, *args: Any) -> WorkerGroup[Any]:
        recipe = _Recipe(role=role, actor=actor, count=count, args=args, ranks=True)
        return self._group(recipe)

    def _group(self, recipe: _Recipe) -> RayWorkerGroup[Any]:
        return RayWorkerGroup(recipe, self._rescheduler, self._standby, self._timeout, self._tell)
