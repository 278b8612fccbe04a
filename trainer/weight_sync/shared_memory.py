"""Sends the policy's weights to rollout engines through shared memory, in buckets.

The policy copies a bucket into shared memory, and each engine copies it out. Both work at the same
time on different buckets. A policy on the CPU has its parameters in shared memory already. Another
node has its own segment: one of its engines fills it over a TCP stream, and its other engines read
it there.
"""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainer.cluster import shared_memory
from trainer.cluster.shared_memory import Address, Entry, Segment, aligned
from trainer.cluster.tcp_stream import Reader, Server
from trainer.weight_sync.messages import Bucket, BucketSpec

BUCKET_BYTES = 256 << 20
"""Size of a bucket: small, so that writer and readers overlap; large, so that calls cost little."""
PARTS = 32
"""Buckets of a large model, about: they are larger, as the segment has room for all of them."""
CPU = torch.device("cpu")


def laid_out(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> BucketSpec:
    """Return entries for tensors of these types and shapes, one after the other."""
    end, entries = 0, []
    for name, (dtype, shape) in tensors.items():
        entries.append(Entry(name, str(dtype).removeprefix("torch."), tuple(shape), end))
        end = aligned(end + size_of(entries[-1]))
    return tuple(entries)


def size_of(entry: Entry) -> int:
    """Return the bytes of a tensor."""
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return math.prod(entry.shape) * dtype.itemsize


def buckets(entries: BucketSpec, size: float) -> list[BucketSpec]:
    """Return `entries`, in order, in buckets of at most `size` bytes, or of one tensor."""
    result: list[list[Entry]] = []
    room = 0.0
    for entry in entries:
        if not result or size_of(entry) > room:
            result.append([])
            room = size
        result[-1].append(entry)
        room -= size_of(entry)
    return [tuple(bucket) for bucket in result]


class SharedMemorySender:
    """Offers one version of a model's weights to engines, then the next version.

    The caller must offer a version only after every engine has taken the version before.
    """

    def __init__(self, dtype: torch.dtype | None = None, port: int = 0) -> None:
        """`dtype`: the type that the engines compute with; None: each tensor's own, as for buffers.

        `port`: TCP port for other nodes; 0: any free port.
        """
        self._dtype = dtype
        self._port = port
        self._state: Mapping[str, Tensor] = {}
        self._entries: BucketSpec = ()
        self._staged: BucketSpec = ()
        """Entries that the segment was made for."""
        self._segment: Segment | None = None
        self._server: Server | None = None

    def offer(
        self,
        state: Mapping[str, Tensor],
        size: float | None = None,
        *,
        buffers: Collection[str] = (),
    ) -> list[BucketSpec]:
        """Return the buckets of `state`. Its tensors must not change until the engines took them.

        `buffers`: names of tensors that are not parameters. They keep their own precision: some
        models have them in fp32, because rounding would route tokens to other experts.
        """
        self._state = state
        kinds = {
            name: (tensor.dtype if name in buffers else self._dtype or tensor.dtype, tensor.shape)
            for name, tensor in state.items()
        }
        self._entries = laid_out(kinds)
        if size is None:
            size = max(BUCKET_BYTES, sum(map(size_of, self._entries)) / PARTS)
        return buckets(self._entries, size)

    def adopt(self, model: nn.Module) -> None:
        """Move the parameters of `model` into shared memory, so that no offer copies them.

        For a model on the CPU whose parameters are offered without a change.
        """
        parameters = dict(model.named_parameters())
        self.offer(parameters)
        for name, place in _views(self._room().buffer, self._entries):
            place.copy_(parameters[name].detach())
            parameters[name].data = place

    def stage(self, bucket: BucketSpec, *, to_other_nodes: bool = False) -> Bucket:
        """Copy a bucket into shared memory, unless it is there already. Return it.

        `to_other_nodes`: other nodes may read it too.
        """
        segment = self._room()
        if to_other_nodes and self._server is None:
            self._server = Server(segment.buffer, self._port)
        for name, place in _views(segment.buffer, bucket):
            tensor = self._state[name].detach()
            if tensor.data_ptr() != place.data_ptr():
                _copy(place, tensor)
        return Bucket(
            segment.address,
            bucket,
            begin=bucket[0].offset,
            end=bucket[-1].offset + size_of(bucket[-1]),
            source=self._server.source if self._server else None,
        )

    def withdraw(self) -> None:
        """Release the offered tensors: every engine has taken them."""
        self._state = {}

    def _room(self) -> Segment:
        """Return a segment for all offered tensors: the last version's segment, if it fits."""
        if self._segment is None or self._staged != self._entries:
            last = self._entries[-1]
            size = aligned(last.offset + size_of(last))
            self._staged, self._segment, self._server = self._entries, Segment(size), None
        return self._segment


class SharedMemoryReceiver:
    """Reads the offered weights in an engine.

    It keeps its mapping of the memory from one version to the next.
    """

    def __init__(self) -> None:
        self._address: Address | None = None
        self._buffer: mmap.mmap | None = None
        self._reader = Reader()
        self._segment: Segment | None = None

    def tensors(self, bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
        """Yield views of a bucket of this node, which are valid until the next version."""
        if self._buffer is None or self._address != bucket.address:
            self._address, self._buffer = bucket.address, shared_memory.attach(bucket.address)
        return _views(self._buffer, bucket.entries)

    def fetch(self, bucket: Bucket) -> Bucket:
        """Copy a bucket of another node to this node. Raises TrainingError if that fails."""
        size = bucket.address.size
        if self._segment is None or self._segment.address.size != size:
            self._segment = Segment(size)
        assert bucket.source is not None, "the bucket was staged for its own node only"
        with (
            memoryview(self._segment.buffer) as whole,
            whole[bucket.begin : bucket.end] as target,
        ):
            self._reader.read(bucket.source, bucket.begin, target)
        return replace(bucket, address=self._segment.address)


def load(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into `model`, converting to its types. Raises KeyError for an unknown name."""
    own = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, tensor in tensors.items():
            _copy(own[name].detach(), tensor)


def _copy(target: Tensor, source: Tensor) -> None:
    """Copy with memcpy if possible: torch's own copy takes a third longer."""
    plain = target.dtype == source.dtype and target.device == source.device == CPU
    if plain and target.is_contiguous() and source.is_contiguous():
        np.copyto(_bytes(target), _bytes(source))
    else:
        target.copy_(source)


def _bytes(tensor: Tensor) -> NDArray[np.generic]:
    array: NDArray[np.generic] = tensor.reshape(-1).view(torch.uint8).numpy()
    return array


def _views(buffer: mmap.mmap, entries: BucketSpec) -> Iterator[tuple[str, Tensor]]:
    for entry in entries:
        dtype = getattr(torch, entry.dtype)
        count = math.prod(entry.shape)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=entry.offset)
        yield entry.name, flat.view(entry.shape)
