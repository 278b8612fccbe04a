"""A rank's access to replica stores: it sends its shard to two of them, and reads shards back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import ray
from ray.exceptions import RayError
from torch import Tensor

from trainer.checkpoint import replica_ring as ring
from trainer.checkpoint.protocol import Receipt, Snapshot, StoreName, Targets
from trainer.checkpoint.replica_store import Bytes, NoRoomError, digest_of, pieces
from trainer.checkpoint.shard_manifest import Contents, ShardManifest
from trainer.checkpoint.staging import HostBuffer, state_of
from trainer.checkpoint.state import State, merged
from trainer.checkpoint.tensor_parts import RemoteTensor, whole_of
from trainer.cluster import shared_memory
from trainer.cluster.calls import first_line
from trainer.types import SnapshotLostError


def replicate(buffer: HostBuffer, role: str, rank: int, to: Targets) -> Receipt:
    """Give a rank's copy to the stores of its own node and of the next one."""
    size = buffer.contents.bytes
    data = np.frombuffer(buffer.buffer, np.uint8, count=size)
    manifest = ShardManifest(
        attempt=to.attempt,
        step=to.step,
        role=role,
        rank=rank,
        ranks=to.ranks,
        run_state=to.run_state,
        in_flight=to.in_flight if rank == 0 else None,
        contents=buffer.contents,
        digests=tuple(digest_of(data[a:b]) for a, b in pieces(size)),
    )
    own, other = ring.neighbours(to.ring, ray.get_runtime_context().get_node_id())
    try:
        if own is not None:
            ring.answer(ring.handle(own).attach.remote(manifest, buffer.address))
        ring.answer(ring.receive(ring.handle(other), manifest, buffer.source))
    except NoRoomError as error:
        return Receipt(size, f"a node would hold {error}", for_good=True)
    except Exception as error:  # training can do without a snapshot
        return Receipt(size, first_line(error))
    return Receipt(size)


def load(snapshot: Snapshot, role: str) -> State:
    """Return the state of all ranks of `role`, with remote tensors: a rank reads what it needs.

    What a store of this node has is mapped, the rest fetched. Reading a tensor raises
    SnapshotLostError if no store has that part of a shard with the right checksum any more.
    """
    here = shared_memory.node()
    shards = [
        _state_of(ReplicaShard(manifest, places, here), manifest.contents)
        for manifest, places in snapshot.shards
        if manifest.role == role
    ]
    whole = merged(shards, role)
    steps = {
        name: {key: _number(one) for key, one in of.items()} for name, of in whole.adam.items()
    }
    return replace(whole, adam=steps)


def _state_of(shard: ReplicaShard, contents: Contents) -> State:
    return state_of(
        contents, lambda entry, dtype: RemoteTensor.at(entry.shape, dtype, shard, entry.offset)
    )


def _number(tensor: Tensor) -> Tensor:
    """Return Adam's counter of updates with its value, and other tensors as they are."""
    return tensor if tensor.dim() else whole_of(tensor)


class ReplicaShard:
    """A rank's shard, read in the pieces of which the manifest has checksums."""

    def __init__(self, manifest: ShardManifest, places: Iterable[StoreName], here: str) -> None:
        """`here`: `shared_memory.node` of this node."""
        self._manifest = manifest
        self._places = list(places)
        self._here = here
        self._bounds = pieces(manifest.contents.bytes)
        self._pieces: dict[int, Bytes] = {}
        self._open: dict[StoreName, ReadRange] = {}

    def read(self, start: int, size: int) -> Bytes:
        """Return a range of the shard's bytes. Raises SnapshotLostError."""
        width, end = self._bounds[0][1], start + size
        parts = [
            self._piece(number)[max(0, start - number * width) : end - number * width]
            for number in range(start // width, -(-end // width))
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _piece(self, number: int) -> Bytes:
        if number not in self._pieces:
            self._pieces[number] = self._found(number)
        return self._pieces[number]

    def _found(self, number: int) -> Bytes:
        manifest, fault = self._manifest, "no node has it any more"
        for place in list(self._places):
            try:
                if place not in self._open:
                    self._open[place] = _opened(manifest, place, self._here)
                data = self._open[place](*self._bounds[number])
            except (RayError, OSError, ValueError) as error:
                fault = first_line(error)
            else:
                if digest_of(data) == manifest.digests[number]:
                    return data
                fault = "its checksum differs"
            self._places.append(self._places.pop(0))  # the next piece is asked elsewhere first
        shard = f"shard {manifest.role}-{manifest.rank} of step {manifest.step}"
        raise SnapshotLostError(f"{shard}: {fault}")


ReadRange = Callable[[int, int], Bytes]
"""(start, end) → those bytes of a shard. Raises RayError, OSError."""


def _opened(manifest: ShardManifest, place: StoreName, here: str) -> ReadRange:
    """Return what reads a shard at `place`.

    Raises RayError, OSError, or ValueError if the store has died.
    """
    store = ring.handle(place)
    if ring.answer(store.node.remote()) == here:
        segment = shared_memory.attach(ring.answer(store.address.remote(manifest.key)))
        data = np.frombuffer(segment, np.uint8, count=manifest.contents.bytes)
        return lambda start, end: data[start:end]

    def fetched(start: int, end: int) -> Bytes:
        # Ray's arrays are read-only, which torch's tensors must not be.
        return np.array(ring.answer(store.piece.remote(manifest.key, start, end - start)))

    return fetched
