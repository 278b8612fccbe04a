"""Copies of a rank's training state, out of training's way: for the disk and for peers.

A copy lies in one segment of shared memory, which is pinned where there is a GPU. It is made once,
and filled anew when nobody needs the step in it any more; the steps that are needed are told by
the driver, who knows what is under way.
"""

from __future__ import annotations

import copy
import ctypes
import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.shard_manifest import Contents
from trainer.checkpoint.state import State
from trainer.cluster.shared_memory import Address, Entry, Segment
from trainer.cluster.tcp_stream import Server, StreamSource

ALIGNMENT = 64
"""Bytes; a cache line."""
PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context."""
Keep = Callable[[Tensor], Tensor]
"""Copies a tensor to where it is safe from training."""


class Copies:
    """The copies of one rank: a segment for each step that is needed at the same time."""

    def __init__(self) -> None:
        self._spaces: list[Space] = []

    def take(
        self, step: int, needed: Iterable[int], bound: int, state_of: Callable[[Keep], State]
    ) -> Contents:
        """Copy what `state_of` passes through its argument, as that of `step`.

        `bound`: bytes that suffice. The copies of all steps but `needed` are overwritten first.
        """
        keep = set(needed) - {step}
        free = [one for one in self._spaces if one.step not in keep and one.size >= bound]
        space = free[0] if free else Space(bound)
        self._spaces = [one for one in self._spaces if one.step in keep] + free[1:]
        space.fill(state_of)
        space.step = step
        self._spaces.append(space)
        return space.contents

    def of(self, step: int) -> Space:
        """Raises KeyError where there is no copy of that step."""
        for space in self._spaces:
            if space.step == step:
                return space
        raise KeyError(step)


class Space:
    """A segment, and what lies in it."""

    def __init__(self, size: int) -> None:
        """`size` may be more than is needed: what is never written takes no memory."""
        self.size = size
        self.step: int | None = None
        self.contents = Contents((), {}, 0)
        self._segment = Segment(size)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._segment.buffer))
        self._end = 0
        self._pinned = 0
        self._server: Server | None = None

    @property
    def address(self) -> Address:
        return self._segment.address

    @property
    def source(self) -> StreamSource:
        """Where other nodes read it, from the first time on that it is asked for."""
        if self._server is None:
            self._server = Server(self._segment.buffer, port=0)
        return self._server.source

    @property
    def buffer(self) -> mmap.mmap:
        return self._segment.buffer

    def fill(self, state_of: Callable[[Keep], State]) -> None:
        self.step = None  # what is torn belongs to no step
        self._end = 0
        state = state_of(self._keep)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        entries = tuple(
            Entry(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), self._offset(t))
            for name, t in _named(state)
        )
        self.contents = Contents(entries, copy.deepcopy(state.scheduler), self._end)
        self._pin()

    def state(self) -> State:
        """The copied state, where it lies."""
        return state_in(self._segment.buffer, self.contents)

    def _keep(self, tensor: Tensor) -> Tensor:
        place = _view(self._segment.buffer, tensor.dtype, tuple(tensor.shape), self._end)
        place.copy_(tensor.detach(), non_blocking=True)
        self._end += math.ceil(tensor.nbytes / ALIGNMENT) * ALIGNMENT
        return place

    def _offset(self, tensor: Tensor) -> int:
        return tensor.data_ptr() - self._base if tensor.numel() else 0

    def _pin(self) -> None:
        """From the second copy on, the GPU writes by itself."""
        if torch.cuda.is_available() and self._pinned < self._end:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if self._pinned:
                runtime.cudaHostUnregister(self._base)
            torch.cuda.check_error(runtime.cudaHostRegister(self._base, self._end, PORTABLE))
            self._pinned = self._end


def room(shapes: Iterable[tuple[int, int]], copies: int) -> int:
    """Bytes that suffice for so many copies of each tensor, given as (elements, bytes of each)."""
    return ALIGNMENT + sum(
        (copies + 1) * (count * max(4, width) + 2 * ALIGNMENT) for count, width in shapes
    )


def state_in(buffer: Any, contents: Contents) -> State:
    """The State whose bytes are in `buffer`, in place."""
    model: dict[str, Tensor] = {}
    average: dict[str, Tensor] = {}
    adam: dict[str, dict[str, Any]] = {}
    for entry in contents.entries:
        kind, key, name = entry.name.split("/", 2)
        tensor = _view(buffer, getattr(torch, entry.dtype), entry.shape, entry.offset)
        if kind == "adam":
            adam.setdefault(name, {})[key] = tensor
        else:
            (model if kind == "model" else average)[name] = tensor
    return State(model=model, adam=adam, scheduler=contents.scheduler, average=average)


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
