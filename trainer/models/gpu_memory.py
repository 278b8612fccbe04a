"""A process's memory: its peak in each phase of a step, and what leaves a GPU for a while.

Tunes the C library's heap, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
CLEAR_PEAK = "5"
"""proc(5): set the peak of the resident set to its size now."""


class Peaks:
    """Peaks of one process: of its GPU's memory, or of its memory beyond what it had at first."""

    def __init__(self, *, shares_gpu: bool = False) -> None:
        """Create it before the model is loaded.

        `shares_gpu`: other processes use the GPU's memory between the phases.
        """
        self._shares_gpu = shares_gpu
        self._base = 0 if torch.cuda.is_available() else _status("VmRSS")
        self._held: dict[str, int] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        _reset()
        try:
            yield
        finally:
            self._held[name] = max(self._held.get(name, 0), _peak() - self._base)
            self.give_back()

    def give_back(self) -> None:
        """Return the GPU's memory of freed tensors, which torch keeps, if others share the GPU."""
        if self._shares_gpu:
            torch.cuda.empty_cache()

    def now(self, name: str) -> None:
        """Record the memory at this moment as phase `name`."""
        with self.phase(name):
            pass

    def taken(self) -> dict[str, int]:
        """Return phase → bytes since the last call."""
        held, self._held = self._held, {}
        return held


def resident() -> int:
    """Return the bytes of this process in the CPU's memory."""
    return _status("VmRSS")


def peak_since_last_call() -> int:
    """Return the most bytes of torch's tensors on the GPU; without one, of the process."""
    peak = _peak()
    _reset()
    return peak


def _reset() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):  # a read-only /proc: the peak is of the whole life
            CLEAR.write_text(CLEAR_PEAK)


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _status("VmHWM")


def _status(name: str) -> int:
    """Return a size of this process in bytes."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


class HostCopies:
    """The CPUs' memory for tensors that leave their GPU between two calls.

    It is allocated and locked at the first time. New memory at each time would cost page faults,
    and a GPU copies from and to pageable memory at a fraction of its speed.
    """

    def __init__(self) -> None:
        self._copies: dict[Hashable, Tensor] = {}

    def down(self, name: Hashable, tensor: Tensor, *, frozen: bool = False) -> Tensor:
        """Return the copy of `tensor`, which has the same name each time.

        `frozen`: it never changes, so that it is copied once.
        """
        held = self._copies.get(name)
        if held is None or (held.shape, held.dtype) != (tensor.shape, tensor.dtype):
            held = self._copies[name] = torch.empty_like(tensor, device="cpu")
            if tensor.is_cuda:
                lock_pages(held)
        elif frozen:
            return held
        return held.copy_(tensor.detach())


Move = Callable[..., Tensor]
"""(name, tensor, frozen=…) → the tensor elsewhere: `HostCopies.down`, or `up_to` a device."""


def up_to(device: torch.device) -> Move:
    """Return what copies tensors to `device`. What it has copied stays where it was, too."""

    def up(name: Hashable, tensor: Tensor, *, frozen: bool = False) -> Tensor:
        return tensor.detach().to(device, copy=True, non_blocking=True)

    return up


def move_modules(modules: dict[str, nn.Module], move: Move) -> None:
    """Move all parameters and buffers of the modules, what several share once."""
    known: set[int] = set()
    for label, module in modules.items():
        tensors: list[tuple[str, Any]] = [*module.named_parameters(), *module.named_buffers()]
        for name, tensor in tensors:
            if id(tensor) not in known:
                known.add(id(tensor))
                is_frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
                tensor.data = move((label, name), tensor.data, frozen=is_frozen)


def lock_pages(tensor: Tensor) -> None:
    """Lock a tensor's memory where it is, so that a GPU copies from it at full speed.

    `pin_memory` would round each tensor up to a power of two. Memory that cannot be locked, as of
    a file that is mapped, is copied more slowly.
    """
    if tensor.numel() and not tensor.is_pinned():
        torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Parameters of mallopt(3)."""
KEPT_BYTES = 2**29
GROWTH_BYTES = 64 * 2**20
LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""Largest threshold that glibc accepts."""


def keep_freed_memory(*, huge_pages: bool = True) -> None:
    """Let tensors reuse the pages of freed tensors. Call it before the first tensor is made.

    By default the C library returns a large tensor's pages to the kernel, which clears new pages
    for the next tensor: a twentieth of a step. Now the process keeps up to half a GiB of free
    memory, and large tensors use huge pages if the system has them. Does nothing unless the C
    library is GNU's.

    `huge_pages`: not for tensors that stay mostly empty, whose huge pages are cleared whole.
    """
    if huge_pages:  # torch reads it at its first large tensor
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_TOP_PAD, GROWTH_BYTES)


def give_freed_memory_back() -> None:
    """Return free memory to the system once. Memory that is freed later is kept again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
