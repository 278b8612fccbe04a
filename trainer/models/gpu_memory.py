"""The most memory that a process takes in each phase of a step, as the kernel or CUDA counts it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
CLEAR_PEAK = "5"
"""proc(5): the peak of the resident set is what is resident now."""


class Peaks:
    """Of one process, on its GPU where it has one; else above what it held before its model."""

    def __init__(self) -> None:
        """To be made before the model is loaded."""
        self._base = 0 if torch.cuda.is_available() else _status("VmRSS")
        self._held: dict[str, int] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        _reset()
        try:
            yield
        finally:
            self._held[name] = max(self._held.get(name, 0), _peak() - self._base)

    def now(self, name: str) -> None:
        """What is held at this moment is that of phase `name`."""
        with self.phase(name):
            pass

    def taken(self) -> dict[str, int]:
        """Phase → bytes, since it was last asked."""
        held, self._held = self._held, {}
        return held


def _reset() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):  # a read-only /proc: the peak is that of the whole life
            CLEAR.write_text(CLEAR_PEAK)


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _status("VmHWM")


def _status(name: str) -> int:
    """Bytes"""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Parameters of mallopt(3)."""
KEPT_BYTES = 2**29
GROWTH_BYTES = 64 * 2**20
LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""glibc takes no larger one."""


def keep_freed_memory() -> None:
    """Let tensors of the next step have the pages of the last one's; before the first tensor.

    By default the C library gives a large tensor's pages back as it is freed, and the kernel clears
    new ones for the next: here that is a twentieth of a step. Up to half a GiB of free memory stays
    with the process instead, and large tensors lie in huge pages where the system has them. Does
    nothing where the C library is not GNU's.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it at its first large tensor
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_TOP_PAD, GROWTH_BYTES)


def give_freed_memory_back() -> None:
    """Once, to the system: what is kept of it then is what comes after."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
