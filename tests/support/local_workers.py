"""Workers in this process, in place of Ray actors: for tests and benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from types import MappingProxyType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from trainer.cluster.worker_group import BACKGROUND_CALLS, Each, Kept, Pending, WorkerGroup, build
from trainer.types import NoRoomError

W_co = TypeVar("W_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")


class Done(Generic[T]):
    """A Pending that has its value."""

    def __init__(self, value: T) -> None:
        self._value = value

    def result(self) -> T:
        return self._value

    def ready(self, seconds: float) -> bool:
        return True

    @property
    def handle(self) -> T:
        return self._value


class ThreadPending(Generic[T]):
    """A Pending of a call in a thread."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def result(self) -> T:
        return self._future.result()

    def ready(self, seconds: float) -> bool:
        return bool(wait_for([self._future], seconds).done)

    @property
    def handle(self) -> T:
        return self._future.result()


class _RanksPending(Generic[T]):
    def __init__(self, calls: Sequence[Pending[T]]) -> None:
        self._calls = calls

    def result(self) -> list[T]:
        return [call.result() for call in self._calls]

    def ready(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        return all(call.ready(max(0.0, deadline - time.monotonic())) for call in self._calls)

    @property
    def handle(self) -> list[T]:
        return [call.handle for call in self._calls]


class LocalWorkerGroup(WorkerGroup[W_co]):
    """Workers that live as long as this process. A call has run when it returns."""

    def __init__(self, workers: Sequence[W_co]) -> None:
        self._workers = list(workers)
        self._background = ThreadPoolExecutor(BACKGROUND_CALLS, thread_name_prefix="background")

    def __len__(self) -> int:
        return len(self._workers)

    def send(
        self,
        worker: int,
        method: Callable[Concatenate[W_co, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        return Done(getattr(self._workers[worker], method.__name__)(*args, **kwargs))

    def call_ranks(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        of_each = [
            [one[worker] if isinstance(one, Each) else one for one in args]
            for worker in range(len(self))
        ]
        call: Any = self.send
        return _RanksPending(
            [call(worker, method, *own, **kwargs) for worker, own in enumerate(of_each)]
        )

    def call_ranks_keeping(
        self,
        earlier: Pending[list[Any]] | None,
        items: int,
        method: Callable[Concatenate[W_co, P], list[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Kept[T]:
        pieces = self.call_ranks(method, *args, **kwargs).result()
        assert {len(of) for of in pieces} == {items}
        return Kept(Done([None] * len(self)), pieces)

    def store(self, value: T) -> T:
        return value

    def call_each_rank_after(
        self,
        earlier: Sequence[Sequence[Pending[Any]]],
        method: Callable[Concatenate[W_co, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[list[T]]:
        return self.call_ranks(method, *args, **kwargs)

    def call_background(
        self, method: Callable[Concatenate[W_co, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[list[T]]:
        calls = [getattr(worker, method.__name__) for worker in self._workers]
        submitted = [self._background.submit(call, *args, **kwargs) for call in calls]
        return _RanksPending([ThreadPending(future) for future in submitted])

    @property
    def role(self) -> str:
        return "worker"

    def wait_any(self, pending: Sequence[Pending[Any]], seconds: float) -> None:
        pending[0].ready(seconds)

    def alive(self, worker: int) -> Pending[None]:
        return Done(None)

    def has_started(self, worker: int, seconds: float) -> bool:
        return True

    def node_lost(self, worker: int) -> bool:
        return False

    def try_reserve(self, worker: int) -> bool:
        return False

    def kill(self, workers: Sequence[int]) -> None:
        pass

    def restart(self, workers: Sequence[int]) -> None:
        raise NoRoomError("a worker in this process does not restart")


class LocalLauncher:
    """A Launcher of workers in this process."""

    pools: Mapping[str, str] = MappingProxyType({})

    def launch(self, role: str, actor: str, count: int, *args: Any) -> WorkerGroup[Any]:
        return LocalWorkerGroup([build(actor, args) for _ in range(count)])

    def launch_ranks(self, role: str, actor: str, count: int, *args: Any) -> WorkerGroup[Any]:
        if count != 1:
            raise ValueError(f"{count} ranks of {role} need a process each")
        return self.launch(role, actor, count, *args)
