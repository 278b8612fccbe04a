"""The workers of one role, whatever process they run in.

A call returns a Pending at once; its `result` waits. No other module of the trainer knows where a
worker runs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from trainer.cluster.imports import without_collections
from trainer.types import LostWorkerError

W_co = TypeVar("W_co", covariant=True)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")

BACKGROUND_CALLS = 3
"""Background calls that a worker runs at the same time: a shard for the disk, a shard for another
node, and an exported model."""

POLL_SECONDS = 2.0
"""Seconds between two checks whether a worker that is waited for still lives."""


class Pending(Protocol[T_co]):
    """The result of a call that may still run."""

    def result(self) -> T_co:
        """Wait for the call and return its value. Raises the call's error."""

    def ready(self, seconds: float) -> bool:
        """Wait at most `seconds`. Returns whether the call has a value or an error."""

    @property
    def handle(self) -> T_co:
        """Stands for the value as an argument of another call: it goes there directly."""


class Each(list[Any]):
    """An argument of a call of all ranks that differs from rank to rank."""


def each(values: Sequence[T]) -> T:
    """Stands for an argument of a call of all ranks: rank i gets `values[i]`."""
    return cast(T, Each(values))


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """A call of all ranks whose results stay where they are made, until another call needs them."""

    ended: Pending[list[None]]
    pieces: list[list[T]]
    """Rank → what stands for each item of its result, in Pieces."""


class Pieces(dict[str, list[Any]]):
    """Role → what its ranks have kept. As an argument of a call it stands for the values."""


class WorkerGroup(ABC, Generic[W_co]):
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
        """Call `method`, a method of the role's Protocol, on one worker."""

    def call_rank0(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[T]:
        return self.send(0, method, *args, **kwargs)

    def call_each(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[Pending[T]]:
        """Call every worker. The calls fail independently of each other."""
        return [self.send(worker, method, *args, **kwargs) for worker in range(len(self))]

    @abstractmethod
    def call_ranks(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        """Call all ranks of a model. The call fails with the error of the first rank to fail."""

    def call_ranks_after(
        self,
        earlier: Pending[list[Any]] | None,
        method: Callable[Concatenate[W_co, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[list[T]]:
        """Call all ranks of a model once a call of another model has ended, however it ends.

        Models that share GPUs compute one after the other: at once they would slow each other.
        """
        awaited = [] if earlier is None else [earlier]
        return self.call_each_rank_after([awaited] * len(self), method, *args, **kwargs)

    @abstractmethod
    def call_each_rank_after(
        self,
        earlier: Sequence[Sequence[Pending[Any]]],
        method: Callable[Concatenate[W_co, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[list[T]]:
        """Call each rank of a model once its own `earlier` calls have ended, however they end."""

    @abstractmethod
    def call_ranks_keeping(
        self,
        earlier: Pending[list[Any]] | None,
        items: int,
        method: Callable[Concatenate[W_co, P], list[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Kept[T]:
        """Like `call_ranks_after`, but each rank's result, a list of `items`, stays there."""

    @abstractmethod
    def store(self, value: T) -> T:
        """Store an argument once for several calls. Returns what stands for it."""

    @abstractmethod
    def call_background(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        """Call all ranks, each in a background thread beside the rank's other calls."""

    @abstractmethod
    def wait_any(self, pending: Sequence[Pending[Any]], seconds: float) -> None:
        """Wait until one of this group's calls is ready, at most `seconds`."""

    @abstractmethod
    def alive(self, worker: int) -> Pending[None]:
        """Ask the worker's process for an answer, which it gives however busy the worker is."""

    @abstractmethod
    def has_started(self, worker: int, seconds: float) -> bool:
        """Wait at most `seconds`. Returns whether the worker has started, or failed to start."""

    def wait_started(self, seconds: float) -> bool:
        """Wait at most `seconds`. Returns whether all workers have started, or failed to start.

        Raises LostWorkerError if a worker dies meanwhile: the others may wait for it forever.
        """
        deadline = time.monotonic() + seconds
        while late := [worker for worker in range(len(self)) if not self.has_started(worker, 0)]:
            for worker in range(len(self)):
                self._check(worker)
            if self.has_started(late[0], POLL_SECONDS):
                continue
            if time.monotonic() > deadline:
                return False
        return True

    def _check(self, worker: int) -> None:
        """Raises LostWorkerError if the worker or its node is dead."""
        alive = self.alive(worker)
        if alive.ready(0.1):
            alive.result()
        elif self.node_lost(worker):
            raise LostWorkerError(f"the node of {self.role}-{worker} is lost", self.role)

    @property
    @abstractmethod
    def role(self) -> str: ...

    @abstractmethod
    def node_lost(self, worker: int) -> bool:
        """Return whether the node that the worker is placed on is lost."""

    @abstractmethod
    def try_reserve(self, worker: int) -> bool:
        """Return whether a node has room for a worker that had none. Requests room, never waits
        for it."""

    @abstractmethod
    def kill(self, workers: Sequence[int]) -> None:
        """Kill these workers, so that they hold no GPU."""

    @abstractmethod
    def restart(self, workers: Sequence[int]) -> None:
        """Kill these workers and start them again, on other nodes if their node is lost.

        All ranks of a model restart, because ranks find each other only at their start.
        Raises NoRoomError if no node has room.
        """


class Launcher(Protocol):
    """Starts the workers of a role."""

    @property
    def pools(self) -> Mapping[str, str]:
        """Role → the GPUs that it shares with others; empty on CPUs, whose cores are divided."""

    def launch(self, role: str, actor: str, count: int, *args: Any) -> WorkerGroup[Any]:
        """Start `count` workers of class `actor` ("module:Class"), built from `args`."""

    def launch_ranks(self, role: str, actor: str, count: int, *args: Any) -> WorkerGroup[Any]:
        """Start workers that hold one model together. Each also gets its Rank as an argument."""


def load(actor: str) -> Any:
    """Return the class `actor` ("module:Class"). Only the worker's process imports it."""
    module, _, name = actor.partition(":")
    with without_collections():
        return getattr(import_module(module), name)


def build(actor: str, args: tuple[Any, ...]) -> Any:
    """Return an instance of `actor` ("module:Class")."""
    return load(actor)(*args)
