"""Policies and engines whose weights have no bytes, and the driver's rounds in an update."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.local_workers import LocalWorkerGroup
from trainer.cluster.shared_memory import Address, Entry
from trainer.cluster.worker_group import Pending
from trainer.rollout.engine_pool import EnginePool
from trainer.types import Rank
from trainer.weight_sync import update
from trainer.weight_sync.messages import Bucket, BucketSpec, GroupRendezvous, IpcHandle, Member

NOWHERE = Address("", 0, 0)


@dataclass
class Sender:
    """A rank of a policy whose weights have no bytes."""

    buckets: int
    rank: Rank

    def node(self) -> str:
        return "here"

    def gpu(self) -> str:
        return f"GPU-{self.rank.index}"

    def meet(self, members: tuple[Member, ...]) -> GroupRendezvous:
        return GroupRendezvous("10.0.0.1", 29500, members)

    def gather(self, seconds: float) -> None:
        pass

    def announce(self) -> list[BucketSpec]:
        return [(Entry(str(number), "bfloat16", (2,), 0),) for number in range(self.buckets)]

    offer = announce

    def stage(self, bucket: BucketSpec, *, to_other_nodes: bool = False) -> Bucket:
        return Bucket(NOWHERE, bucket, 0, 4)

    def broadcast(self, bucket: BucketSpec, seconds: float) -> None:
        pass

    def lend(self, bucket: BucketSpec) -> IpcHandle:
        return IpcHandle(bucket, self.gpu(), b"")

    def withdraw(self) -> None:
        pass


@dataclass
class Receiver:
    """An engine that notes what it takes."""

    of_gpus: list[str] = field(default_factory=list)
    taken: list[tuple[str, ...]] = field(default_factory=list)
    """Of each bucket: its name, and the GPUs that it came from."""

    def node(self) -> str:
        return "here"

    def gpus(self) -> list[str]:
        return self.of_gpus

    def member(self) -> Member:
        return Member("one", 1)

    def join(self, rank: Any) -> None:
        pass

    def begin(self) -> None:
        pass

    def load(self, bucket: Bucket) -> None:
        self.receive(bucket.entries)

    def receive(self, bucket: BucketSpec) -> None:
        self.taken.append((bucket[0].name,))

    def borrow(self, *lent: IpcHandle) -> None:
        self.taken.append((lent[0].bucket[0].name, *(handle.gpu for handle in lent)))

    def commit(self, version: int) -> None:
        pass


@dataclass
class Rounds:
    """A round: calls that the driver sends after it has waited for an answer."""

    count: int = 0
    calls: int = 0
    answered: bool = True
    awaited: list[list[int]] = field(default_factory=list)
    """Of each bucket that is lent: the calls of engines that each rank waits for."""

    def sent(self) -> None:
        self.count += self.answered
        self.calls += 1
        self.answered = False


class Watched:
    """A Pending that tells when it is waited for."""

    def __init__(self, pending: Pending[Any], rounds: Rounds) -> None:
        self._pending, self._rounds = pending, rounds

    def result(self) -> Any:
        self._rounds.answered = True
        return self._pending.result()

    def ready(self, seconds: float) -> bool:
        self._rounds.answered = True
        return self._pending.ready(seconds)

    @property
    def handle(self) -> Any:
        return self._pending.handle


class Counted(LocalWorkerGroup[Any]):
    def __init__(self, workers: list[Any], rounds: Rounds) -> None:
        super().__init__(workers)
        self._rounds = rounds

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        self._rounds.sent()
        return Watched(super().send(worker, method, *args, **kwargs), self._rounds)

    def call_each_rank_after(self, earlier: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        self._rounds.awaited.append([len(calls) for calls in earlier])
        return super().call_each_rank_after(earlier, method, *args, **kwargs)


def publish(backend: str, buckets: int, engines: list[Receiver]) -> Rounds:
    rounds = Rounds()
    policy = Counted([Sender(buckets, Rank(index, 4)) for index in range(4)], rounds)
    update.update_weights(policy, EnginePool(Counted([*engines], rounds)), 1, backend=backend)
    return rounds
