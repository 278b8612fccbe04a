"""How a process that computes on CPUs gets its memory."""

from __future__ import annotations

import ctypes
import os

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
