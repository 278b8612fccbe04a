"""A node's replica store: shards of its own ranks and of another node's, in memory.

The store outlives the job that filled it, and computes nothing. A shard of a rank of the same node
is the rank's own copy, which stays here after the rank has died. A shard from another node is read
from its rank by a stream, memory to memory. An incomplete shard is never listed.

The store receives several shards at a time in threads, beside other requests. A stream from an
unreachable node is silent until it times out; meanwhile other requests are answered.

Ray ends the store when Ray ends on the node. If the node's entrypoint started that Ray, its
descriptor store keeps the shards, and the store of the next Ray begins with them.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from contract.files import fd_store
from contract.files.child_variables import NODE_DIR
from contract.run_dir import RunFiles
from trainer.checkpoint import labels
from trainer.checkpoint.labels import PIECE_BYTES, LabelError
from trainer.checkpoint.memory_shards import Key, ShardManifest
from trainer.checkpoint.spilled import SpilledReplicas
from trainer.cluster import shared_memory
from trainer.cluster.shared_memory import Address, Segment
from trainer.cluster.tcp_stream import Reader, StreamSource
from trainer.types import TrainingError

log = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]


class TornError(Exception):
    """The bytes that arrived differ from those that were sent."""


class NoRoomError(Exception):
    """The node would hold more than its budget."""


@dataclass(frozen=True, slots=True)
class _Shard:
    """A complete shard."""

    segment: Segment
    manifest: ShardManifest


class _Own(threading.local):
    """State of each thread."""

    def __init__(self) -> None:
        self.reader = Reader()


class ReplicaStore:
    """The actor on each node."""

    def __init__(self, budget: float, owner: str = "", *, goes_on: bool = False) -> None:
        """`budget`: bytes that it may hold, copies of ranks included. `owner`: the run, as the
        descriptor store knows it. `goes_on`: begin with the shards that the descriptor store has.
        """
        self._budget = budget
        self._owner = owner
        self._spilled = _spilled(owner)
        self._shards = _on_disk(self._spilled) if goes_on else {}
        self._of_files = frozenset(self._shards)
        """Shards that were in files of this node when the store began."""
        self._shards |= _left(owner) if goes_on else {}
        self._coming: dict[Key, int] = {}
        """Bytes of the shards that are being received."""
        self._spare: list[Segment] = []
        self._changing = threading.Lock()
        self._own = _Own()

    def node(self) -> str:
        """Return `shared_memory.node` of this node."""
        return shared_memory.node()

    def set_budget(self, budget: float) -> None:
        self._budget = budget

    def attach(self, manifest: ShardManifest, address: Address) -> None:
        """Hold a copy that a rank of this node made, by mapping it.

        Raises NoRoomError, and OSError if the rank has ended.
        """
        with self._changing:
            self._check_room(manifest)
            self._shards[manifest.key] = _Shard(shared_memory.adopt(address), manifest)

    def receive(self, manifest: ShardManifest, source: StreamSource) -> None:
        """Read a rank's copy from another node. Raises NoRoomError, and TornError if it differs.

        May run in several threads, for different shards.
        """
        size = manifest.contents.bytes
        with self._changing:
            self._check_room(manifest)
            self._coming[manifest.key] = size
            spare = next((one for one in self._spare if one.address.size == size), None)
            if spare:
                self._spare.remove(spare)
        try:
            segment = spare or Segment(size)
            self._read(manifest, source, view(segment))
            with self._changing:
                self._shards[manifest.key] = _Shard(segment, manifest)
        finally:
            with self._changing:
                del self._coming[manifest.key]

    def _read(self, manifest: ShardManifest, source: StreamSource, place: Bytes) -> None:
        for (start, end), digest in zip(pieces(len(place)), manifest.digests, strict=True):
            piece = place[start:end]
            try:
                self._own.reader.read(source, start, piece.data)
            except TrainingError as error:
                raise TornError(f"{_named(manifest)} did not come: {error.__cause__}") from None
            if digest_of(piece) != digest:
                raise TornError(f"{_named(manifest)} was damaged on its way")

    def manifests(self) -> list[ShardManifest]:
        with self._changing:
            return [shard.manifest for shard in self._shards.values()]

    def keep(self, attempt: str, step: int) -> None:
        """Delete shards that are older than this step of this attempt, or of another attempt."""
        with self._changing:
            old = [key for key in self._shards if key[0] != attempt or key[1] < step]
            freed = [self._shards.pop(key).segment for key in old]
            self._spare = [segment for segment in freed if not segment.adopted]
            is_over = not self._shards.keys() & self._of_files
        self.deposit()
        if is_over and self._spilled:  # the run has newer steps than those files
            self._spilled.forget()

    def amend(self, attempt: str, step: int, run_state: str) -> None:
        """Replace the run state of that step."""
        with self._changing:
            for key, shard in self._shards.items():
                if key[:2] == (attempt, step):
                    manifest = replace(shard.manifest, run_state=run_state)
                    self._shards[key] = replace(shard, manifest=manifest)
        self.deposit()

    def clear(self) -> None:
        """Delete all shards, also those in the descriptor store."""
        with self._changing:
            self._shards, self._spare = {}, []
        self.deposit()
        if self._spilled:
            self._spilled.forget()

    def held(self) -> int:
        """Return the bytes of all shards."""
        return sum(manifest.contents.bytes for manifest in self.manifests())

    def address(self, key: Key) -> Address:
        """Return where a process of this node finds a shard."""
        return self._shards[key].segment.address

    def piece(self, key: Key, start: int, size: int) -> Bytes:
        return view(self._shards[key].segment)[start : start + size]

    def deposit(self) -> None:
        """Give what is held to the descriptor store: from now on it outlives this node's Ray."""
        # Its own ranks' shards first: what one node has spilled, another need not spill again.
        with self._changing:
            shards = sorted(self._shards.values(), key=lambda shard: not shard.segment.adopted)
        segments = {shard.manifest.name: shard.segment.descriptor for shard in shards}
        try:
            label = labels.dump(shard.manifest for shard in shards)
            fd_store.deposit(self._owner, label, segments)
        except (OSError, TypeError) as error:  # training can do without
            log.warning("this node's snapshots would not outlive its Ray: %s", error)

    def _check_room(self, manifest: ShardManifest) -> None:
        """Raise NoRoomError if the shard does not fit beside those of its step on their way."""
        self._shards.pop(manifest.key, None)
        here = sum(shard.manifest.contents.bytes for shard in self._shards.values())
        coming = sum(size for key, size in self._coming.items() if key[:2] == manifest.key[:2])
        wanted = here + coming + manifest.contents.bytes
        if wanted > self._budget:
            raise NoRoomError(f"{wanted / 1e9:.2f} GB, and may hold {self._budget / 1e9:.2f} GB")


def _spilled(owner: str) -> SpilledReplicas | None:
    """Return the files that this node's entrypoint wrote; None if all nodes share their place."""
    own = os.environ.get(NODE_DIR)
    return SpilledReplicas(RunFiles(Path(own)).kept, owner) if own else None


def _on_disk(spilled: SpilledReplicas | None) -> dict[Key, _Shard]:
    """Return the shards in those files, in memory again."""
    shards: dict[Key, _Shard] = {}
    if spilled is None:
        return shards
    for manifest in spilled.manifests():
        segment = Segment(max(1, manifest.contents.bytes))
        try:
            view(segment)[: manifest.contents.bytes] = spilled.read(manifest)
        except OSError as error:
            log.warning("a shard in this node's files is ignored: %s", error)
        else:
            shards[manifest.key] = _Shard(segment, manifest)
    return shards


def _left(owner: str) -> dict[Key, _Shard]:
    """Return the shards that the previous Ray's store on this node left in the descriptor store."""
    try:
        found = fd_store.withdraw(owner)
    except OSError as error:
        log.warning("the shards of the previous Ray cannot be read: %s", error)
        return {}
    if not found.descriptors:
        return {}
    sizes = [os.fstat(one).st_size for one in found.descriptors]
    try:
        manifests = labels.parse(found.label)
        pairs = zip(manifests, sizes, strict=True)
        if not all(manifest.contents.bytes <= size for manifest, size in pairs):
            raise LabelError("a shard is shorter than its label says")
    except ValueError as error:
        found.close()
        log.warning("the shards of the previous Ray are ignored: %s", error)
        return {}
    segments = map(Segment, sizes, found.descriptors)
    return {s.key: _Shard(one, s) for s, one in zip(manifests, segments, strict=True)}


def view(segment: Segment) -> Bytes:
    return np.frombuffer(segment.buffer, np.uint8)


def digest_of(data: Bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data.data)


def pieces(size: int) -> list[tuple[int, int]]:
    """Return (beginning, end) of each piece of `size` bytes."""
    return [
        (start, min(size, start + PIECE_BYTES)) for start in range(0, max(1, size), PIECE_BYTES)
    ]


def _named(manifest: ShardManifest) -> str:
    return f"shard {manifest.role}-{manifest.rank} of step {manifest.step}"
