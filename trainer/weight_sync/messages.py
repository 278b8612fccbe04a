"""What policy, driver and engines send one another on a weight update. Torch-free.

The protocols say what an update asks of the policy (`WeightSender`), of an engine
(`WeightReceiver`, `GPUWeightReceiver`) and of the engines together (`ReceiverPool`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeVar

from trainer.cluster.shared_memory import Address, Entry
from trainer.cluster.tcp_stream import StreamSource
from trainer.cluster.worker_group import Pending
from trainer.types import TrainingError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Memory = Literal["weights", "cache"]

BucketSpec = tuple[Entry, ...]
"""The tensors of one bucket, without their bytes."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors in a segment of shared memory: a few hundred bytes that stand for megabytes."""

    address: Address
    entries: BucketSpec
    begin: int
    end: int
    """The tensors lie between these bytes of the segment."""
    source: StreamSource | None = None
    """Where other nodes read them."""


@dataclass(frozen=True, slots=True)
class IpcHandle:
    """A bucket in a GPU's memory, for processes on that GPU to read."""

    bucket: BucketSpec
    gpu: str
    """UUID of the GPU."""
    handle: bytes
    """Pickled arguments with which torch opens the memory: an address and its type, no contents."""


@dataclass(frozen=True, slots=True)
class Member:
    """An engine in the group that the policy broadcasts to."""

    process: str
    """Unique to the engine's process."""
    ranks: int
    """Number of its GPUs, each a rank of the group."""


@dataclass(frozen=True, slots=True)
class GroupRank:
    """Where the ranks of a member are in the group."""

    host: str
    port: int
    """Where the group meets."""
    first: int
    """The member's first rank; its others follow."""
    world: int


@dataclass(frozen=True, slots=True)
class GroupRendezvous:
    """A group that is being formed. The policy's first rank is rank 0, and waits at the port."""

    host: str
    port: int
    members: tuple[Member, ...]

    @property
    def world(self) -> int:
        return 1 + sum(member.ranks for member in self.members)

    def ranks(self) -> list[GroupRank]:
        """Return the ranks of each member, in order."""
        ranks, first = [], 1
        for member in self.members:
            ranks.append(GroupRank(self.host, self.port, first, self.world))
            first += member.ranks
        return ranks


class WeightSender(Protocol):
    """A rank of the policy."""

    def node(self) -> str:
        """Return `shared_memory.node` of its node."""

    def offer(self) -> list[BucketSpec]:
        """Offer the newest weights through shared memory. Returns their buckets."""

    def stage(self, bucket: BucketSpec, *, to_other_nodes: bool = False) -> Bucket:
        """Return a bucket of the offered weights. `to_other_nodes`: other nodes read it too."""

    def meet(self, members: tuple[Member, ...]) -> GroupRendezvous | None:
        """Open a port for a group with these members; None if the group exists already.

        Raises TrainingError if the port is taken.
        """

    def gather(self, seconds: float) -> None:
        """Wait for the members. Raises BrokenGroupError if one is missing after `seconds`."""

    def announce(self) -> list[BucketSpec]:
        """Offer the newest weights from GPU to GPU. Returns their buckets.

        This call, `broadcast` and `lend` go to all ranks together, because the ranks gather sharded
        weights bucket by bucket.
        """

    def broadcast(self, bucket: BucketSpec, seconds: float) -> None:
        """Broadcast a bucket from the first rank.

        Raises BrokenGroupError, and leaves the group, if it is not taken within `seconds`.
        """

    def gpu(self) -> str:
        """Return the UUID of this rank's GPU."""

    def lend(self, bucket: BucketSpec) -> IpcHandle:
        """Put a bucket into this rank's GPU memory, where LENT_BUCKETS have room.

        The caller must lend a bucket only after engines have read the bucket that it replaces.
        """

    def withdraw(self) -> None:
        """All engines have all buckets: free the GPU memory of the update."""


class WeightReceiver(Protocol):
    """An engine."""

    def node(self) -> str:
        """Return `shared_memory.node` of its node, once the engine has started."""

    def begin(self) -> None:
        """Begin an update; buckets of an update that broke off are dropped."""

    def fetch(self, bucket: Bucket) -> Bucket:
        """Copy a bucket from the policy's node into this node's shared memory."""

    def load(self, bucket: Bucket) -> None:
        """Load a bucket from this node's shared memory."""

    def commit(self, version: int) -> None:
        """All buckets are loaded: completions now use them, and carry `version`."""

    def sleep(self) -> None:
        """Free the memory of weights and cache; the weights are lost."""

    def wake(self, memory: Memory) -> None:
        """Allocate that memory again: for weights before they are loaded, for the cache after."""


class GPUWeightReceiver(WeightReceiver, Protocol):
    """An engine that also takes weights from GPU to GPU."""

    def member(self) -> Member:
        """Return its membership in the policy's group, once the engine has started."""

    def join(self, rank: GroupRank) -> None:
        """Join a group, and leave the one before. Raises BrokenGroupError if none is formed."""

    def receive(self, bucket: BucketSpec) -> None:
        """Receive a bucket that the policy broadcasts."""

    def gpus(self) -> list[str]:
        """Return the UUIDs of the engine's GPUs."""

    def borrow(self, *lent: IpcHandle) -> None:
        """Load a bucket from the engine's GPUs: a handle from the policy's rank on each."""


class UpdateTimeouts(Protocol):
    """Seconds."""

    @property
    def start(self) -> float:
        """For a process to load its model."""

    @property
    def part(self) -> float:
        """For one bucket, or a change of state."""


class ReceiverPool(Protocol):
    """The engines of a run."""

    @property
    def patience(self) -> UpdateTimeouts: ...

    @property
    def present(self) -> list[int]:
        """The engines that take part in the update."""

    def ask(
        self, method: Callable[Concatenate[R, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> dict[int, Pending[T]]:
        """Call a method of every present engine."""

    def send(
        self,
        worker: int,
        method: Callable[Concatenate[R, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        """Call a method of one engine."""

    def answers(
        self,
        asked: Mapping[int, Pending[T]],
        seconds: float,
        what: str,
        remade: int = 0,
        blame: Callable[[int], None] = ...,
    ) -> dict[int, T]:
        """Return the results of the engines that answer in time; the others are lost.

        `blame` is called for an engine that is late or failed. It raises if another is at fault.
        """

    def alive(self, worker: int) -> Pending[None]:
        """Ask an engine's process for a sign of life."""

    def lose(self, worker: int, why: TrainingError) -> None:
        """Count an engine as lost."""

    def welcome(self, version: int) -> None:
        """Take back lost engines that have started."""

    def committed(self) -> None:
        """All present engines have the newest weights."""
