"""Groups whose workers are Ray actors: the only place where an actor meets Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainer import stream
from trainer.actors.base import Rank
from trainer.actors.group import BEHIND, Group, Pending, build
from trainer.actors.liveness import Liveness
from trainer.placement import Placement, Seat
from trainer.types import TrainingError

W_co = TypeVar("W_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")


def _received(reference: Any) -> Any:
    """Raises what the call raised; where that is meant for people, without saying where."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, TrainingError):
            raise error.cause from None
        raise


class _Remote(Generic[T]):
    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def result(self) -> T:
        return cast(T, _received(self._reference))

    def ready(self, seconds: float) -> bool:
        done, _ = ray.wait([self._reference], timeout=seconds, fetch_local=False)
        return bool(done)

    @property
    def handle(self) -> T:
        # Ray replaces a reference among the arguments by its value, in the callee.
        return cast(T, self._reference)


class _OfAllRanks(Generic[T]):
    """One call on all ranks: it fails with the first of them, and when one no longer answers."""

    def __init__(self, references: Sequence[Any], liveness: Liveness) -> None:
        self._references = references
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
        waiting = list(self._references)
        _, late = ray.wait(waiting, num_returns=len(waiting), timeout=seconds)
        if late:
            self._liveness.blame(f"within {seconds:g} s")
        return not late

    def _check(self, reference: Any) -> None:
        """Raises where the call failed: names the rank that is at fault if it has gone silent."""
        try:
            _received(reference)
        except RayTaskError as error:
            self._liveness.blame(f"while another failed ({str(error).splitlines()[-1]})")
            raise

    @property
    def handle(self) -> list[T]:
        return cast(list[T], self._references)


class _Behind(_OfAllRanks[T]):
    """One that is looked at now and then: a rank that is busy with something else is not silent."""

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


class _Host:
    """The Ray actor that holds a worker of any role."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._worker: Any = None
        self._meeting: Any = None

    def meet(self, timeout: float) -> tuple[str, int]:
        """Where the ranks of this worker's model find each other; asked of the first alone."""
        from trainer.actors.rendezvous import Meeting

        self._meeting = Meeting(ray.util.get_node_ip_address(), timeout)
        address: tuple[str, int] = self._meeting.address
        return address

    def join(self, address: tuple[str, int], rank: Rank, timeout: float) -> None:
        from trainer.actors import rendezvous

        rendezvous.join(address, rank, ray.util.get_node_ip_address(), timeout)

    def build(self, actor: str, args: tuple[Any, ...], joined: None = None) -> str:
        """Returns where the worker is. Fails where `joined`, what came of `join`, has failed."""
        address = ray.util.get_node_ip_address()
        os.environ.setdefault(stream.ADDRESS, address)
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


class RayGroup(Group[W_co]):
    def __init__(self, actors: list[Any], built: list[Any], liveness: Liveness) -> None:
        """`built` are references to what came of building each worker."""
        self._actors = actors
        self._built = built
        self._liveness = liveness

    def __len__(self) -> int:
        return len(self._actors)

    def send(
        self,
        worker: int,
        method: Callable[Concatenate[W_co, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        return _Remote(self._call(worker, method.__name__, args, kwargs))

    def together(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        # Put once, read in place by every rank of a node.
        stored = args if len(self) == 1 else tuple(map(_stored, args))
        workers = range(len(self))
        calls = [self._call(worker, method.__name__, stored, kwargs) for worker in workers]
        return _OfAllRanks(calls, self._liveness)

    def behind(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        calls = [
            actor.call_behind.remote(built, method.__name__, *args, **kwargs)
            for actor, built in zip(self._actors, self._built, strict=True)
        ]
        return _Behind(calls, self._liveness)

    def _call(self, worker: int, method: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        return self._actors[worker].call.remote(self._built[worker], method, *args, **kwargs)


def _stored(argument: Any) -> Any:
    return argument if isinstance(argument, ray.ObjectRef) else ray.put(argument)


class RayLauncher:
    """Starts workers as Ray actors in the bundles of a placement."""

    def __init__(self, placement: Placement, timeout: float) -> None:
        """`timeout` in seconds: of a collective, and of a rank that does not answer."""
        self._placement = placement
        self._timeout = timeout

    def launch(self, role: str, actor: str, count: int, *args: Any) -> Group[Any]:
        names, hosts = self._hosts(role, count)
        built = [host.build.remote(actor, args) for host in hosts]
        return RayGroup(hosts, built, Liveness(names, hosts, built, self._timeout))

    def launch_ranks(self, role: str, actor: str, count: int, *args: Any) -> Group[Any]:
        names, hosts = self._hosts(role, count)
        address = hosts[0].meet.remote(self._timeout) if count > 1 else None
        built = []
        for index, host in enumerate(hosts):
            rank = Rank(index, count)
            joined = host.join.remote(address, rank, self._timeout) if address else None
            built.append(host.build.remote(actor, (*args, rank), joined))
        return RayGroup(hosts, built, Liveness(names, hosts, built, self._timeout))

    def _hosts(self, role: str, count: int) -> tuple[list[str], list[Any]]:
        hosts = [self._start(role, index) for index in range(count)]
        return [f"{role}-{index}" for index in range(count)], hosts

    def _start(self, role: str, number: int) -> Any:
        name = f"{role}-{number}"
        kind = type(name, (_Host,), {})  # processes are titled by it: ps and py-spy show the role
        actor = ray.remote(concurrency_groups={"health": 1, "behind": BEHIND})(kind).options(
            name=name, **_options(self._placement, self._placement.seat(role, number))
        )
        return actor.remote(name)


def _options(placement: Placement, seat: Seat) -> dict[str, Any]:
    """Ray's options for an actor in its seat.

    A tensor parallel engine on GPUs is the parent of its ranks, as Ray actors in the bundles that
    vLLM finds in its environment, and holds no GPU itself.
    """
    parent = seat.on_gpus and len(seat.bundles) > 1
    options: dict[str, Any] = {
        "num_cpus": seat.cpus,
        "num_gpus": seat.fraction if seat.on_gpus and not parent else 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement.group,
            placement_group_bundle_index=seat.bundles[0],
            placement_group_capture_child_tasks=parent,
        ),
    }
    if parent:
        environment = {
            "VLLM_RAY_BUNDLE_INDICES": ",".join(map(str, seat.bundles)),
            "VLLM_RAY_PER_WORKER_GPUS": f"{seat.fraction:g}",
        }
        options["runtime_env"] = {"env_vars": environment}
    return options
