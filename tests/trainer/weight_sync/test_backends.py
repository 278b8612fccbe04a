"""A policy that broadcasts its weights to engines: who is in the group, and who is to blame.

The workers here take part for real, each in a thread, in a group that breaks as NCCL's do; only the
bytes are missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import pytest

from tests.support.local_workers import LocalWorkerGroup, ThreadPending
from tests.support.lost_calls import Never
from trainer.cluster.restarts import Patience
from trainer.cluster.shared_memory import Entry
from trainer.cluster.worker_group import Pending
from trainer.rollout.engine_pool import EnginePool
from trainer.types import BrokenGroupError, NoRoomError
from trainer.weight_sync import backends, update
from trainer.weight_sync.messages import BucketSpec, GroupRank, GroupRendezvous, Member

PARTS: list[BucketSpec] = [(Entry(name, "bfloat16", (2,), 0),) for name in ("a", "b", "c")]
BRIEF = Patience(start=5, part=0.3)


@dataclass
class World:
    """What the processes share: ports where groups meet, and when it all ends."""

    groups: dict[int, Barrier] = field(default_factory=dict)
    over: Event = field(default_factory=Event)

    def call_ranks(self, port: int, seconds: float | None = None) -> None:
        self.groups[port].wait(seconds)


@dataclass
class Broadcasting:
    """A policy that has no weights."""

    world: World
    meeting: GroupRendezvous | None = None
    met: list[GroupRendezvous] = field(default_factory=list)

    def node(self) -> str:
        return "here"

    def meet(self, members: tuple[Member, ...]) -> GroupRendezvous | None:
        if self.meeting and self.meeting.members == members:
            return None
        self.meeting = GroupRendezvous("10.0.0.1", 29500 + len(self.met), members)
        self.met.append(self.meeting)
        self.world.groups[self.meeting.port] = Barrier(1 + len(members))
        return self.meeting

    def gather(self, seconds: float) -> None:
        self._all(seconds)

    def announce(self) -> list[BucketSpec]:
        return PARTS

    def broadcast(self, part: BucketSpec, seconds: float) -> None:
        self._all(seconds)

    def withdraw(self) -> None:
        pass

    def _all(self, seconds: float) -> None:
        if self.meeting is None:
            raise BrokenGroupError("the NCCL group of the weight sync is broken")
        try:
            self.world.call_ranks(self.meeting.port, seconds)
        except BrokenBarrierError:
            self.meeting = None
            raise BrokenGroupError(f"not all came within {seconds:g} s") from None


@dataclass
class Receiving:
    world: World
    number: int
    ranks: int = 1
    stops_at: str = ""
    """In what it is stopped, for good."""
    seat: GroupRank | None = None
    parts: list[str] = field(default_factory=list)
    version: int = 0
    stopped: bool = False

    def member(self) -> Member:
        return Member(f"{self.number}-{id(self)}", self.ranks)

    def begin(self) -> None:
        self.parts.clear()

    def join(self, seat: GroupRank) -> None:
        self._stop_at("join")
        self.seat = seat
        try:
            self.world.call_ranks(seat.port)
        except BrokenBarrierError:
            raise BrokenGroupError("connection reset") from None

    def receive(self, part: BucketSpec) -> None:
        self._stop_at(part[0].name)
        assert self.seat is not None
        try:
            self.world.call_ranks(self.seat.port)
        except BrokenBarrierError:  # nothing tells a kernel that nobody sends any more
            self.world.over.wait()
        self.parts += [entry.name for entry in part]

    def commit(self, version: int) -> None:
        self.version = version

    def _stop_at(self, place: str) -> None:
        if place == self.stops_at:
            self.stopped = True
            self.world.over.wait()


class Processes(LocalWorkerGroup[Any]):
    """Each worker has a thread, and is at one call at a time."""

    def __init__(self, workers: list[Any], *, spare: bool = True) -> None:
        super().__init__(workers)
        self._spare = spare
        self._threads = [ThreadPoolExecutor(1) for _ in workers]

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        call = getattr(self._workers[worker], method.__name__)
        return ThreadPending(self._threads[worker].submit(call, *args, **kwargs))

    def alive(self, worker: int) -> Pending[None]:
        return Never() if self._workers[worker].stopped else super().alive(worker)

    def restart(self, workers: Sequence[int]) -> None:
        if not self._spare:
            raise NoRoomError("no node has room")
        for worker in workers:
            old = self._workers[worker]
            self._workers[worker] = Receiving(old.world, old.number, old.ranks)
            self._threads[worker] = ThreadPoolExecutor(1)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(backends, "GRACE", 0.2)
    world = World()
    yield world
    world.over.set()
    for barrier in world.groups.values():
        barrier.abort()


def publish_to(
    world: World, engines: list[Receiving], *, spare: bool = True, versions: int = 1
) -> tuple[Broadcasting, Processes, EnginePool]:
    policy, group = Broadcasting(world), Processes(engines, spare=spare)
    pool = EnginePool(group, patience=BRIEF)
    for version in range(1, versions + 1):
        update.update_weights(Processes([policy]), pool, version, backend="nccl")
    return policy, group, pool


def test_one_group_of_all_ranks_stands_from_version_to_version(world: World) -> None:
    engines = [Receiving(world, 0, ranks=2), Receiving(world, 1, ranks=2)]
    policy, _, _ = publish_to(world, engines, versions=3)
    assert [meeting.world for meeting in policy.met] == [5]
    assert [engine.seat for engine in engines] == policy.met[0].ranks()
    assert [engine.parts for engine in engines] == [["a", "b", "c"]] * 2
    assert [engine.version for engine in engines] == [3, 3]


def test_an_engine_that_does_not_join_is_named_and_another_one_takes_its_place(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = [Receiving(world, 0), Receiving(world, 1, stops_at="join")]
    policy, group, pool = publish_to(world, engines)
    said = capsys.readouterr().out
    where = "joining the weights' group at 10.0.0.1, port 29500"
    assert re.search(rf"engine-1 is lost \(it did not answer within 0.3 s: {where}\)", said)
    assert "engine-0 is lost" not in said
    assert pool.present == [0, 1]
    assert [new is old for new, old in zip(group._workers, engines, strict=True)] == [True, False]
    assert [worker.version for worker in group._workers] == [1, 1]
    assert len(policy.met) == 2


def test_an_engine_that_stops_in_a_broadcast_is_named_and_those_who_hang_on_it_start_anew(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = [Receiving(world, 0), Receiving(world, 1, stops_at="b"), Receiving(world, 2)]
    policy, group, _ = publish_to(world, engines)
    said = capsys.readouterr().out
    part = "weights of version 1, bucket 2 of 3"
    assert f"engine-1 is lost (it did not answer within 0.3 s: {part})" in said
    for innocent in (0, 2):
        assert f"engine-{innocent} is lost (it was left waiting by engine-1: {part})" in said
    assert [worker.parts for worker in group._workers] == [["a", "b", "c"]] * 3
    assert [worker.version for worker in group._workers] == [1, 1, 1]
    assert len(policy.met) == 2


def test_the_run_goes_on_without_an_engine_that_cannot_be_replaced(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = [Receiving(world, 0, stops_at="join"), Receiving(world, 1)]
    policy, _, pool = publish_to(world, engines, spare=False)
    assert pool.present == [1]
    assert engines[1].version == 1
    assert policy.met[-1].members == (engines[1].member(),)
    assert "The run goes on with 1 of 2 engines" in capsys.readouterr().out


def test_a_group_that_breaks_with_nobody_missing_ends_the_run_and_says_why(world: World) -> None:
    class Deaf(Broadcasting):
        def broadcast(self, part: BucketSpec, seconds: float) -> None:
            self.meeting = None
            raise BrokenGroupError("no NCCL: unhandled system error")

    class Idle(Receiving):
        def receive(self, part: BucketSpec) -> None:
            pass

    pool = EnginePool(Processes([Idle(world, 0)]), patience=BRIEF)
    with pytest.raises(BrokenGroupError, match="unhandled system error"):
        update.update_weights(Processes([Deaf(world)]), pool, 1, backend="nccl")
    assert pool.present == [0]
