"""The policy's weights on their way to the rollout engines, in parts of some megabytes.

To an engine on the policy's node a part goes through shared memory: one copy into it, one out of
it, the two at the same time for different parts. To other nodes it goes as numpy views, which Ray's
object store takes to each node once, where engines read them in place (far quicker than pickled
torch tensors).
"""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainer import shared
from trainer.shared import Address, Entry, Parcel, Segment
from trainer.types import Names, Weights

PART_BYTES = 64 << 20
"""Small enough for writer and readers to work at the same time, large enough not to be felt."""
CPU = torch.device("cpu")
ALIGNMENT = 64
"""Bytes; a cache line, and what vectorised copies like."""


def parts(state: Mapping[str, Tensor], size: float = PART_BYTES) -> list[Names]:
    """The names of `state`, in order, in parts of at most `size` bytes, or of one tensor."""
    result: list[Names] = []
    names: list[str] = []
    filled = 0
    for name, tensor in state.items():
        if names and filled + tensor.nbytes > size:
            result.append(tuple(names))
            names, filled = [], 0
        names.append(name)
        filled += tensor.nbytes
    return [*result, tuple(names)] if names else result


def export(state: Mapping[str, Tensor]) -> Weights:
    """A model's tensors as numpy arrays; on CPU they share its memory."""
    return {name: _array(tensor) for name, tensor in state.items()}


class Outbox:
    """One version of a model's weights, for engines to take; then the next.

    The next may be offered once every engine has taken this one: the caller sees to that.
    """

    def __init__(self) -> None:
        self._state: Mapping[str, Tensor] = {}
        self._offsets: dict[str, int] = {}
        self._segment: Segment | None = None

    def offer(self, state: Mapping[str, Tensor], size: float = PART_BYTES) -> list[Names]:
        """The parts that there are of `state`; its tensors must stay as they are until taken."""
        self._state = state
        return parts(state, size)

    def tensors(self, part: Names) -> dict[str, Tensor]:
        return {name: self._state[name] for name in part}

    def stage(self, part: Names) -> Parcel:
        """Copy a part to its place in shared memory."""
        segment = self._laid_out()
        entries = tuple(
            Entry(name, _name(tensor.dtype), tuple(tensor.shape), self._offsets[name])
            for name, tensor in self.tensors(part).items()
        )
        for name, place in _views(segment.buffer, entries):
            _copy(place, self._state[name].detach())
        return Parcel(segment.address, entries)

    def _laid_out(self) -> Segment:
        """Room for all of the offered tensors: the segment of the version before, if it fits."""
        end, offsets = 0, {}
        for name, tensor in self._state.items():
            offsets[name] = end
            end += math.ceil(tensor.nbytes / ALIGNMENT) * ALIGNMENT
        if self._segment is None or (offsets, end) != (self._offsets, self._segment.address.size):
            self._offsets, self._segment = offsets, Segment(end)
        return self._segment


class Inbox:
    """An engine's view of what it is given.

    The mapping of shared memory is kept from one version to the next: its pages are found once.
    """

    def __init__(self) -> None:
        self._address: Address | None = None
        self._buffer: mmap.mmap | None = None

    def tensors(self, part: Weights | Parcel) -> Iterator[tuple[str, Tensor]]:
        """Views of the part, where it lies: those of shared memory until the next version."""
        if not isinstance(part, Parcel):
            return ((name, _tensor(array)) for name, array in part.items())
        if self._buffer is None or self._address != part.address:
            self._address, self._buffer = part.address, shared.attach(part.address)
        return _views(self._buffer, part.entries)


def load(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into `model`, converting to its types. Raises KeyError for an unknown name."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors.items():
            _copy(parameters[name].detach(), tensor)


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


def _views(buffer: mmap.mmap, entries: tuple[Entry, ...]) -> Iterator[tuple[str, Tensor]]:
    for entry in entries:
        dtype = getattr(torch, entry.dtype)
        count = math.prod(entry.shape)
        flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=entry.offset)
        yield entry.name, flat.view(entry.shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _array(parameter: Tensor) -> NDArray[np.generic]:
    tensor = parameter.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.int16)
    array: NDArray[np.generic] = tensor.numpy()
    return array


def _tensor(array: NDArray[np.generic]) -> Tensor:
    with warnings.catch_warnings():
        # The object store's memory is read-only, and so is what we do with it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if tensor.dtype is torch.int16 else tensor
