"""Staging buffers: copies of a rank's training state, for checkpoints and replicas.

A buffer is one segment of shared memory; with a GPU it is pinned. It is allocated once and reused
when its step is not needed any more. The driver says which steps are still needed.
"""

from __future__ import annotations

import copy
import ctypes
import math
import mmap
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.memory_shards import Contents
from trainer.checkpoint.state import State
from trainer.cluster.shared_memory import ALIGNMENT, Address, Entry, Segment, aligned
from trainer.cluster.tcp_stream import Server, StreamSource
from trainer.types import SnapshotLostError

PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context."""


class StagingBuffers:
    """The copies of one rank: a buffer for each step that is needed at the same time."""

    def __init__(self) -> None:
        self._buffers: list[HostBuffer] = []

    def take(self, step: int, needed: Iterable[int], state: State) -> Contents:
        """Copy `state`, whose tensors training goes on to change, as the state of `step`.

        Buffers of steps not in `needed` are reused.
        """
        contents = _contents_of(state)
        keep = set(needed) - {step}
        free = [one for one in self._buffers if one.step not in keep and one.size >= contents.bytes]
        buffer = free[0] if free else HostBuffer(max(contents.bytes, ALIGNMENT))
        self._buffers = [one for one in self._buffers if one.step in keep] + free[1:]
        buffer.fill(state, contents)
        buffer.step = step
        self._buffers.append(buffer)
        return contents

    def of(self, step: int) -> HostBuffer:
        """Return the copy of `step`. Raises KeyError if there is none."""
        for buffer in self._buffers:
            if buffer.step == step:
                return buffer
        raise KeyError(step)


class HostBuffer:
    """A segment of host memory, and what lies in it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.step: int | None = None
        self.contents = Contents((), {}, 0)
        self._segment = Segment(size)
        self._pinned = 0
        self._server: Server | None = None

    @property
    def address(self) -> Address:
        return self._segment.address

    @property
    def source(self) -> StreamSource:
        """Where other nodes read it; the first use starts the server."""
        if self._server is None:
            self._server = Server(self._segment.buffer, port=0)
        return self._server.source

    @property
    def buffer(self) -> mmap.mmap:
        return self._segment.buffer

    def fill(self, state: State, contents: Contents) -> None:
        """Copy the tensors to the places that `contents` has for them."""
        self.step = None  # an incomplete copy belongs to no step
        copied: set[int] = set()
        for entry, (_, tensor) in zip(contents.entries, _named(state), strict=True):
            if id(tensor) not in copied:
                copied.add(id(tensor))
                place = _view(self._segment.buffer, tensor.dtype, entry.shape, entry.offset)
                place.copy_(tensor.detach(), non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.contents = contents
        self._pin()

    def state(self) -> State:
        """The copied state, in place."""
        return state_in(self._segment.buffer, self.contents)

    def _pin(self) -> None:
        """Pin the memory: from the second copy on, the GPU writes it asynchronously."""
        end = self.contents.bytes
        if torch.cuda.is_available() and self._pinned < end:
            runtime = torch.cuda.cudart()
            base = ctypes.addressof(ctypes.c_char.from_buffer(self._segment.buffer))
            if self._pinned:
                runtime.cudaHostUnregister(base)
            torch.cuda.check_error(runtime.cudaHostRegister(base, end, PORTABLE))
            self._pinned = end


def _contents_of(state: State) -> Contents:
    """Return where each tensor is to lie; one with two names lies in one place."""
    entries: list[Entry] = []
    places: dict[int, int] = {}
    end = 0
    for name, tensor in _named(state):
        if id(tensor) not in places:
            places[id(tensor)] = end
            end += aligned(tensor.nbytes)
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append(Entry(name, dtype, tuple(tensor.shape), places[id(tensor)]))
    return Contents(tuple(entries), copy.deepcopy(state.scheduler), end, state.pieces)


def state_in(buffer: Any, contents: Contents) -> State:
    """Return the State whose bytes are in `buffer`, in place.

    Raises SnapshotLostError if another version made it, with a data type that is unknown here.
    """
    model: dict[str, Tensor] = {}
    average: dict[str, Tensor] = {}
    adam: dict[str, dict[str, Any]] = {}
    for entry in contents.entries:
        kind, key, name = entry.name.split("/", 2)
        tensor = _view(buffer, _dtype(entry), entry.shape, entry.offset)
        if kind == "adam":
            adam.setdefault(name, {})[key] = tensor
        else:
            (model if kind == "model" else average)[name] = tensor
    return State(
        model=model,
        adam=adam,
        scheduler=contents.scheduler,
        average=average,
        pieces=contents.pieces,
    )


def _dtype(entry: Entry) -> torch.dtype:
    dtype = getattr(torch, entry.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise SnapshotLostError(
            f"{entry.name} has the data type {entry.dtype!r}, which is unknown here"
        )
    return dtype


def _named(state: State) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in state.model.items():
        yield f"model//{name}", tensor
    for name, tensor in state.average.items():
        yield f"average//{name}", tensor
    for name, held in state.adam.items():
        yield from ((f"adam/{key}/{name}", tensor) for key, tensor in held.items())


def _view(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset).view(shape)
