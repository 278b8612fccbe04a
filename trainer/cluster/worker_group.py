"""Workers of one role, called all at once: over Ray, or in this process.

A call returns at once with a Pending; who needs the outcome waits for it. Nothing else in the
trainer knows where a worker runs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from importlib import import_module
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from trainer.types import LostWorkerError, NoSeatError

W_co = TypeVar("W_co", covariant=True)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")

BEHIND = 3
"""Calls that a worker takes at a time beside its work: a share for the disk, one for a peer, and an
exported model."""


LOOK_SECONDS = 2.0
"""How often it is looked whether those that are waited for still live."""


class Pending(Protocol[T_co]):
    """The outcome of a call that may still be under way."""

    def result(self) -> T_co:
        """Wait for it. Raises what the call raised."""

    def ready(self, seconds: float) -> bool:
        """Whether there is an outcome, after waiting for it at most so long."""

    @property
    def handle(self) -> T_co:
        """Stands for the outcome as an argument of another call: it travels there directly."""


class Group(ABC, Generic[W_co]):
    """The workers of one role."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def send(
        self,
        worker: int,
        method: Callable[Concatenate[W_co, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        """Call `method`, named through the role's Protocol, on one worker."""

    def first(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[T]:
        return self.send(0, method, *args, **kwargs)

    def all(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[Pending[T]]:
        """The same call on every worker."""
        return [self.send(worker, method, *args, **kwargs) for worker in range(len(self))]

    def together(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        """The same call on all ranks of a model: one outcome, that of the first to fail if any."""
        return _All(self.all(method, *args, **kwargs))

    @abstractmethod
    def behind(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        """The same call on all ranks, in a thread of each, beside whatever else they are asked."""

    def first_of(self, pending: Sequence[Pending[Any]], seconds: float) -> None:
        """Wait until one of this group's calls has an outcome, at most so long."""
        pending[0].ready(seconds)

    def alive(self, worker: int) -> Pending[None]:
        """Answered by the worker's process, however busy the worker is."""
        return _Done(None)

    def up(self, worker: int, seconds: float) -> bool:
        """Whether it has started, or failed to, after waiting for it at most so long."""
        return True

    def started(self, seconds: float) -> bool:
        """Whether all have started, or failed to, after waiting for them at most so long.

        Raises LostWorkerError where one is lost meanwhile: the others might wait for it in vain.
        """
        deadline = time.monotonic() + seconds
        while late := [worker for worker in range(len(self)) if not self.up(worker, 0)]:
            for worker in range(len(self)):
                self._check(worker)
            if self.up(late[0], LOOK_SECONDS):
                continue
            if time.monotonic() > deadline:
                return False
        return True

    def _check(self, worker: int) -> None:
        """Raises LostWorkerError where the worker has died, or its node."""
        alive = self.alive(worker)
        if alive.ready(0.1):
            alive.result()
        elif self.stranded(worker):
            raise LostWorkerError(f"the node of {self.role}-{worker} is lost", self.role)

    @property
    def role(self) -> str:
        return "worker"

    def stranded(self, worker: int) -> bool:
        """Whether the node that it is to run on is lost."""
        return False

    def found(self, worker: int) -> bool:
        """Whether there is a place again for one that had none: asks, and waits for nothing."""
        return False

    def end(self, workers: Sequence[int]) -> None:
        """Kill these, so that they hold no GPU."""

    def renew(self, workers: Sequence[int]) -> None:
        """Kill these and start them anew, elsewhere where their node is lost.

        The ranks of a model are all started anew, as they find each other only at their start.
        Raises NoSeatError where no node has room.
        """
        raise NoSeatError("what runs in this process is not started anew")


class Launcher(Protocol):
    """Starts the workers of a role."""

    def launch(self, role: str, actor: str, count: int, *args: Any) -> Group[Any]:
        """`count` workers of class `actor` ("module:Class"), built from `args`, starting up."""

    def launch_ranks(self, role: str, actor: str, count: int, *args: Any) -> Group[Any]:
        """The same, for workers that hold one model together: each is told its Rank, too."""


def build(actor: str, args: tuple[Any, ...]) -> Any:
    """An instance of "module:Class"; imported only here, in the process that needs it."""
    module, _, name = actor.partition(":")
    return getattr(import_module(module), name)(*args)


class _Done(Generic[T]):
    def __init__(self, value: T) -> None:
        self._value = value

    def result(self) -> T:
        return self._value

    def ready(self, seconds: float) -> bool:
        return True

    @property
    def handle(self) -> T:
        return self._value


class _All(Generic[T]):
    def __init__(self, parts: Sequence[Pending[T]]) -> None:
        self._parts = parts

    def result(self) -> list[T]:
        return [part.result() for part in self._parts]

    def ready(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        return all(part.ready(max(0.0, deadline - time.monotonic())) for part in self._parts)

    @property
    def handle(self) -> list[T]:
        return [part.handle for part in self._parts]


class _Threaded(Generic[T]):
    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def result(self) -> T:
        return self._future.result()

    def ready(self, seconds: float) -> bool:
        return bool(wait_for([self._future], seconds).done)

    @property
    def handle(self) -> T:
        return self._future.result()


class LocalGroup(Group[W_co]):
    """Workers in this process; a call is done when it returns."""

    def __init__(self, workers: list[W_co]) -> None:
        self._workers = workers
        self._behind = ThreadPoolExecutor(BEHIND, thread_name_prefix="behind")

    def __len__(self) -> int:
        return len(self._workers)

    def send(
        self,
        worker: int,
        method: Callable[Concatenate[W_co, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        return _Done(getattr(self._workers[worker], method.__name__)(*args, **kwargs))

    def behind(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        calls = [getattr(worker, method.__name__) for worker in self._workers]
        return _All([_Threaded(self._behind.submit(call, *args, **kwargs)) for call in calls])


class LocalLauncher:
    def launch(self, role: str, actor: str, count: int, *args: Any) -> Group[Any]:
        return LocalGroup([build(actor, args) for _ in range(count)])

    def launch_ranks(self, role: str, actor: str, count: int, *args: Any) -> Group[Any]:
        if count != 1:
            raise ValueError(f"{count} ranks of {role} need a process each")
        return self.launch(role, actor, count, *args)
