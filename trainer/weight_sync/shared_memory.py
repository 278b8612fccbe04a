"""The policy's weights on their way to the rollout engines, in parts of some megabytes.

A part goes through shared memory: one copy into it, one out of it, the two at the same time for
different parts; a policy that computes on the CPU has its parameters there and spares the first.
Another node has a segment of its own, which one of its engines fills from the policy's by a stream;
the others there read what it has filled.
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

PART_BYTES = 256 << 20
"""Small enough for writer and readers to work at the same time, large enough not to be felt."""
CPU = torch.device("cpu")


def laid_out(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> BucketSpec:
    """Tensors by name, each with its type and shape, one after the other."""
    end, entries = 0, []
    for name, (dtype, shape) in tensors.items():
        entries.append(Entry(name, _name(dtype), tuple(shape), end))
        end = aligned(end + size_of(entries[-1]))
    return tuple(entries)


def size_of(entry: Entry) -> int:
    """Bytes."""
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return math.prod(entry.shape) * dtype.itemsize


def parts(entries: BucketSpec, size: float) -> list[BucketSpec]:
    """`entries`, in order, in parts of at most `size` bytes, or of one tensor."""
    result: list[list[Entry]] = []
    room = 0.0
    for entry in entries:
        if not result or size_of(entry) > room:
            result.append([])
            room = size
        result[-1].append(entry)
        room -= size_of(entry)
    return [tuple(part) for part in result]


class SharedMemorySender:
    """One version of a model's weights, for engines to take; then the next.

    The next may be offered once every engine has taken this one: the caller sees to that.
    """

    def __init__(self, dtype: torch.dtype | None = None, port: int = 0) -> None:
        """`dtype`: what the engines compute with; each tensor's own where None, and of buffers.

        `port`: where other nodes read; 0 for any.
        """
        self._dtype = dtype
        self._port = port
        self._state: Mapping[str, Tensor] = {}
        self._entries: BucketSpec = ()
        self._staged: BucketSpec = ()
        """Those that there is room for."""
        self._segment: Segment | None = None
        self._server: Server | None = None

    def offer(
        self,
        state: Mapping[str, Tensor],
        size: float | None = None,
        *,
        buffers: Collection[str] = (),
    ) -> list[BucketSpec]:
        """The parts that there are of `state`; its tensors must stay as they are until taken.

        `buffers`: those of them that are no parameters. They stay in their own precision: some
        models keep them in fp32 whatever they compute with, as rounding would change the experts
        that tokens are routed to.
        """
        self._state = state
        kinds = {
            name: (tensor.dtype if name in buffers else self._dtype or tensor.dtype, tensor.shape)
            for name, tensor in state.items()
        }
        self._entries = laid_out(kinds)
        return parts(self._entries, PART_BYTES if size is None else size)

    def adopt(self, model: nn.Module) -> None:
        """Let the parameters of `model` lie in shared memory for good: none is copied there then.

        For a model on the CPU that is offered as it is.
        """
        parameters = dict(model.named_parameters())
        self.offer(parameters)
        for name, place in _views(self._room().buffer, self._entries):
            place.copy_(parameters[name].detach())
            parameters[name].data = place

    def stage(self, part: BucketSpec, *, abroad: bool = False) -> Bucket:
        """A part in shared memory: copied to its place there, unless it lies there.

        `abroad`: other nodes may read it, too.
        """
        segment = self._room()
        if abroad and self._server is None:
            self._server = Server(segment.buffer, self._port)
        for name, place in _views(segment.buffer, part):
            tensor = self._state[name].detach()
            if tensor.data_ptr() != place.data_ptr():
                _copy(place, tensor)
        return Bucket(
            segment.address,
            part,
            begin=part[0].offset,
            end=part[-1].offset + size_of(part[-1]),
            source=self._server.source if self._server else None,
        )

    def withdraw(self) -> None:
        """Every engine has taken what was offered: its tensors are held here no longer."""
        self._state = {}

    def _room(self) -> Segment:
        """For all of the offered tensors: the segment of the version before, if it fits."""
        if self._segment is None or self._staged != self._entries:
            last = self._entries[-1]
            size = aligned(last.offset + size_of(last))
            self._staged, self._segment, self._server = self._entries, Segment(size), None
        return self._segment


class SharedMemoryReceiver:
    """An engine's view of what it is given.

    Memory is kept from one version to the next: its pages are found once.
    """

    def __init__(self) -> None:
        self._address: Address | None = None
        self._buffer: mmap.mmap | None = None
        self._reader = Reader()
        self._segment: Segment | None = None

    def tensors(self, parcel: Bucket) -> Iterator[tuple[str, Tensor]]:
        """Views of a parcel of this node, as it is until the next version."""
        if self._buffer is None or self._address != parcel.address:
            self._address, self._buffer = parcel.address, shared_memory.attach(parcel.address)
        return _views(self._buffer, parcel.entries)

    def fetch(self, parcel: Bucket) -> Bucket:
        """The same on this node, from another one. Raises TrainingError where that fails."""
        size = parcel.address.size
        if self._segment is None or self._segment.address.size != size:
            self._segment = Segment(size)
        assert parcel.source is not None, "it was staged for its own node only"
        with (
            memoryview(self._segment.buffer) as whole,
            whole[parcel.begin : parcel.end] as target,
        ):
            self._reader.read(parcel.source, parcel.begin, target)
        return replace(parcel, address=self._segment.address)


def load(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into `model`, converting to its types. Raises KeyError for an unknown name."""
    own = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, tensor in tensors.items():
            _copy(own[name].detach(), tensor)


def _copy(target: Tensor, source: Tensor) -> None:
    """memcpy where it is one: torch's own copy takes a third longer."""
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
