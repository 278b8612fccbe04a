"""Weight-sync backends, driver side: shared memory, NCCL broadcast, CUDA IPC.

`choose` decides which one a run uses. Each backend names the process that keeps others waiting.

All calls of `carry` are sent before the first answer is waited for. What a rank has for an engine
goes there as an argument of the engine's call, so an update has as many rounds of the driver for a
large model as for a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from trainer.cluster.memory_estimate import LENT_BUCKETS
from trainer.cluster.restarts import silent
from trainer.cluster.worker_group import Pending, WorkerGroup
from trainer.config.layout import Role
from trainer.types import BrokenGroupError, EngineFailedError, LostWorkerError, TrainingError
from trainer.weight_sync.messages import (
    Bucket,
    BucketSpec,
    GPUWeightReceiver,
    IpcHandle,
    ReceiverPool,
    UpdateTimeouts,
    WeightReceiver,
    WeightSender,
)

T = TypeVar("T")

GRACE = 5.0
"""Seconds for those that waited for another to say so, after all have timed out."""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """One version of the weights on its way to the engines."""

    policy: WorkerGroup[WeightSender]
    engines: ReceiverPool
    what: str

    @property
    def patience(self) -> UpdateTimeouts:
        return self.engines.patience

    def answer(self, pending: Pending[T], place: str = "", more: float = 0.0) -> T:
        """Return the policy's answer. Raises LostWorkerError if it is late by `more` seconds."""
        if not pending.ready(self.patience.part + more):
            raise late(place or self.what)
        return pending.result()

    def answers(self, asked: Mapping[int, Pending[T]], place: str = "") -> dict[int, T]:
        """Return the engines' answers; engines that do not answer in time are lost."""
        return self.engines.answers(asked, self.patience.part, place or self.what)

    def places(self, buckets: list[BucketSpec]) -> Iterator[tuple[str, BucketSpec]]:
        """Yield each bucket with its name for messages."""
        for number, bucket in enumerate(buckets, start=1):
            yield f"{self.what}, bucket {number} of {len(buckets)}", bucket


class Backend(Protocol):
    """A method raises BrokenGroupError if all must start again without some engines."""

    def prepare(self) -> None:
        """Find out which process is where."""

    def offered(self) -> list[BucketSpec]:
        """Offer the policy's newest weights. Returns their buckets."""

    def carry(self, buckets: list[BucketSpec]) -> None:
        """Bring the buckets to every present engine, after all have begun an update."""

    def finish(self) -> None:
        """The engines have committed the update."""


class _FromPolicy:
    """What all backends share: all ranks of the policy take part."""

    def __init__(self, update: WeightUpdate) -> None:
        self._update = update

    def finish(self) -> None:
        self._update.answer(self._update.policy.call_ranks(WeightSender.withdraw))


class SharedMemoryBackend(_FromPolicy):
    """Sends each bucket to each node once, and from there into each engine, while the next one is
    prepared."""

    def prepare(self) -> None:
        update = self._update
        asked = update.engines.ask(WeightReceiver.node), update.policy.call_rank0(WeightSender.node)
        self._nodes = update.answers(asked[0])
        self._home = update.answer(asked[1])

    def offered(self) -> list[BucketSpec]:
        # Sharded weights are gathered by all ranks together.
        return self._update.answer(self._update.policy.call_ranks(WeightSender.offer))[0]

    def carry(self, buckets: list[BucketSpec]) -> None:
        update = self._update
        nodes = {engine: self._nodes[engine] for engine in update.engines.present}
        route = _Route.of(nodes, self._home)
        transfers = [_hand_over(update, bucket, route, at) for at, bucket in update.places(buckets)]
        for transfer in transfers:
            transfer.wait(update.engines)


class _FromGPUs(_FromPolicy):
    """Sends from every rank's own GPU memory."""

    def offered(self) -> list[BucketSpec]:
        return self._update.answer(self._update.policy.call_ranks(WeightSender.announce))[0]


class NcclBackend(_FromGPUs):
    """Broadcasts from the policy's first rank to every GPU of every engine.

    The group lasts from one version to the next. It is formed again if the process of an engine or
    of the policy has changed.
    """

    def prepare(self) -> None:
        update = self._update
        members = update.answers(update.engines.ask(GPUWeightReceiver.member))
        self._members = members.keys()
        if not members:
            raise BrokenGroupError("no engine is left to send weights to")
        meeting = update.answer(
            update.policy.call_rank0(WeightSender.meet, tuple(members.values())),
            "its weights' group",
        )
        if meeting is None:
            return
        place = f"joining the weights' group at {meeting.host}, port {meeting.port}"
        gathered = update.policy.call_rank0(WeightSender.gather, update.patience.part)
        ranks = zip(members, meeting.ranks(), strict=True)
        joined = {
            one: update.engines.send(one, GPUWeightReceiver.join, rank) for one, rank in ranks
        }
        self._settle(gathered, joined, place)

    def carry(self, buckets: list[BucketSpec]) -> None:
        policy, engines, under_way = self._update.policy, self._update.engines, []
        self._require_all("the first bucket")
        for place, bucket in self._update.places(buckets):
            sent = policy.call_ranks(WeightSender.broadcast, bucket, self._update.patience.part)
            under_way.append((sent, engines.ask(GPUWeightReceiver.receive, bucket), place))
        for broadcast in under_way:
            self._settle(*broadcast)
            self._require_all(f"the end of {broadcast[-1]}")

    def _require_all(self, place: str) -> None:
        if self._members != set(self._update.engines.present):
            raise BrokenGroupError(f"an engine was lost before {place}")

    def _settle(self, ours: Pending[Any], theirs: Mapping[int, Pending[None]], place: str) -> None:
        """Wait for what policy and engines do together."""
        try:
            self._update.answer(ours, place, more=2 * GRACE)  # it times out before
        except BrokenGroupError:
            self._name_those_late(theirs, place)
            raise
        self._update.answers(theirs, place)

    def _name_those_late(self, asked: Mapping[int, Pending[None]], place: str) -> None:
        engines, late = self._update.engines, {}
        for engine, pending in asked.items():
            if not pending.ready(GRACE):
                late[engine] = engines.alive(engine).ready(GRACE)
                continue
            try:
                pending.result()
            except (LostWorkerError, EngineFailedError) as loss:
                engines.lose(engine, loss)
            except BrokenGroupError:
                pass  # it only waited
        for engine, how in blamed(late).items():
            how_long = f"within {self._update.patience.part:g} s: {place}"
            why = silent(f"engine-{engine}", Role.ENGINE, how_long)
            engines.lose(engine, EngineFailedError(f"it {how}: {place}") if how else why)


class IpcBackend(_FromGPUs):
    """Lends each bucket from each rank of the policy to the engines on its GPU.

    A rank has LENT_BUCKETS buffers, and fills one again when its own engines have read it.
    """

    def prepare(self) -> None:
        update = self._update
        asked = update.engines.ask(GPUWeightReceiver.gpus)
        rank_gpus = update.answer(update.policy.call_ranks(WeightSender.gpu))
        self._lenders = {
            engine: [rank for rank, gpu in enumerate(rank_gpus) if gpu in gpus]
            for engine, gpus in update.answers(asked).items()
        }
        """Engine → the ranks on its GPUs."""
        if alone := [engine for engine, ranks in self._lenders.items() if not ranks]:
            raise TrainingError(
                f"engine-{alone[0]} shares no GPU with the policy, and cannot read its weights by "
                "CUDA IPC. --vllm_sync_backend shared_memory does without"
            )

    def carry(self, buckets: list[BucketSpec]) -> None:
        loans: list[_Loan] = []
        for number, (place, bucket) in enumerate(self._update.places(buckets)):
            before = loans[number - LENT_BUCKETS].borrowed if number >= LENT_BUCKETS else {}
            loans.append(self._loan(place, bucket, before))
        for loan in loans:
            loan.wait(self._update.engines)

    def _loan(self, place: str, bucket: BucketSpec, before: Mapping[int, Pending[None]]) -> _Loan:
        """`before`: the engines' calls that read what was in the buffers."""
        policy, engines = self._update.policy, self._update.engines
        readers = [
            [before[engine] for engine in before if rank in self._lenders[engine]]
            for rank in range(len(policy))
        ]
        lent = policy.call_each_rank_after(readers, WeightSender.lend, bucket)
        handles, borrow = lent.handle, GPUWeightReceiver.borrow
        borrowed = {
            engine: engines.send(engine, borrow, *(handles[rank] for rank in self._lenders[engine]))
            for engine in engines.present
        }
        return _Loan(place, lent, borrowed)


@dataclass(frozen=True, slots=True)
class _Loan:
    """A bucket in a buffer of each rank of the policy, and the engines that read it."""

    place: str
    lent: Pending[list[IpcHandle]]
    borrowed: Mapping[int, Pending[None]]

    def wait(self, engines: ReceiverPool) -> None:
        def blame(engine: int) -> None:
            """Raise if the policy keeps `engine` waiting, or has failed."""
            if not self.lent.ready(0):
                raise late(self.place)
            self.lent.result()

        engines.answers(self.borrowed, engines.patience.part, self.place, blame=blame)


BACKENDS: Mapping[str, Callable[[WeightUpdate], Backend]] = {
    "auto": SharedMemoryBackend,
    "shared_memory": SharedMemoryBackend,
    "nccl": NcclBackend,
    "ipc": IpcBackend,
}
"""A run's slots settle `auto`; without slots it is what always works."""


@dataclass(frozen=True, slots=True)
class _Route:
    nodes: Mapping[int, str]
    """Of each engine."""
    fetching_engines: Mapping[str, int]
    """Node other than the policy's → the engine that fetches the weights there."""

    @classmethod
    def of(cls, nodes: Mapping[int, str], home: str) -> _Route:
        """`home`: the policy's node."""
        last_first = sorted(nodes.items(), reverse=True)
        return cls(nodes, {node: engine for engine, node in last_first if node != home})


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A bucket on its way: from the policy to the node of each engine, and into each engine."""

    place: str
    route: _Route
    staged: Pending[Bucket]
    brought: Mapping[str, Pending[Bucket]]
    """To each node other than the policy's."""
    taken: Mapping[int, Pending[None]]
    """By each engine."""

    def wait(self, engines: ReceiverPool) -> None:
        def blame(engine: int) -> None:
            """Raise if another process keeps `engine` waiting, or has died.

            The first engine of a node fetches the weights, and was checked before.
            """
            if not self.staged.ready(0):
                raise late(self.place)
            fetching_engine = self.route.fetching_engines.get(self.route.nodes[engine], engine)
            if fetching_engine not in engines.present:
                raise EngineFailedError(
                    f"engine-{fetching_engine}, which brought its weights, is lost"
                )

        engines.answers(self.taken, engines.patience.part, self.place, blame=blame)


def _hand_over(update: WeightUpdate, bucket: BucketSpec, route: _Route, place: str) -> _Transfer:
    engines = update.engines
    staged = update.policy.call_rank0(
        WeightSender.stage, bucket, to_other_nodes=bool(route.fetching_engines)
    )
    brought = {
        node: engines.send(engine, WeightReceiver.fetch, staged.handle)
        for node, engine in route.fetching_engines.items()
    }
    taken = {
        engine: engines.send(engine, WeightReceiver.load, brought.get(node, staged).handle)
        for engine, node in route.nodes.items()
    }
    return _Transfer(place, route, staged, brought, taken)


def late(what: str) -> LostWorkerError:
    how = "did not answer in time"
    return LostWorkerError(f"the policy {how}: {what}", Role.POLICY, f"it {how}")


def blamed(late: Mapping[int, bool]) -> dict[int, str]:
    """Return the engines to lose after a collective timed out → what is wrong with each.

    `late`: whether each late engine's process still answers. One that does was only waiting, and is
    not at fault if another is silent.
    """
    silent = [f"engine-{engine}" for engine, answers in late.items() if not answers]
    return {
        engine: f"was left waiting by {', '.join(silent)}" if answers and silent else ""
        for engine, answers in late.items()
    }
