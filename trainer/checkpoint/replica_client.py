"""A rank's access to replica stores: it sends its shard to two of them, and reads shards back."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import ray
from ray.exceptions import RayError

from trainer.checkpoint import replica_ring as ring
from trainer.checkpoint.memory_shards import ShardManifest
from trainer.checkpoint.protocol import Receipt, ReplicaPlace, Snapshot, Targets
from trainer.checkpoint.replica_store import Bytes, NoRoomError, digest_of, pieces
from trainer.checkpoint.spilled import SpilledReplicas
from trainer.checkpoint.staging import HostBuffer, state_in
from trainer.checkpoint.state import State, merged
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
    """Return the state of all ranks of `role`: mapped if a store of this node has it, else fetched.

    Raises SnapshotLostError if no store has a shard with the right checksums any more.
    """
    here = shared_memory.node()
    shards = [
        state_in(_bytes_of(manifest, places, here), manifest.contents)
        for manifest, places in snapshot.shards
        if manifest.role == role
    ]
    return merged(shards, role)


def _bytes_of(manifest: ShardManifest, places: Iterable[ReplicaPlace], here: str) -> Bytes:
    """Return a buffer with the shard's bytes."""
    fault = "no node has it any more"
    for place in places:
        try:
            data = _mapped_or_fetched(manifest, place, here)
        except (RayError, OSError, ValueError) as error:
            fault = first_line(error)
            continue
        digests = (digest_of(data[a:b]) for a, b in pieces(manifest.contents.bytes))
        if tuple(digests) == manifest.digests:
            return data
        fault = "its checksum differs"
    raise SnapshotLostError(
        f"shard {manifest.role}-{manifest.rank} of step {manifest.step}: {fault}"
    )


def _mapped_or_fetched(manifest: ShardManifest, place: ReplicaPlace, here: str) -> Bytes:
    """Raises RayError, OSError, or ValueError if the store has died."""
    if isinstance(place, SpilledReplicas):
        return place.read(manifest)
    store, size = ring.handle(place), manifest.contents.bytes
    if ring.answer(store.node.remote()) == here:
        segment = shared_memory.attach(ring.answer(store.address.remote(manifest.key)))
        return np.frombuffer(segment, np.uint8, count=size)
    data = np.empty(size, np.uint8)
    for start, end in pieces(size):
        data[start:end] = ring.answer(store.piece.remote(manifest.key, start, end - start))
    return data
