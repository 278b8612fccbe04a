"""Memory segments that processes of one node share.

A segment is anonymous memory (memfd). The kernel frees the segment when the last process that maps
it has ended, however it ended. It needs no space under /dev/shm, where a container has 64 MB by
default.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

ALIGNMENT = 64
"""Bytes of a cache line; vectorised copies are faster from such offsets."""


def aligned(size: int) -> int:
    """Return `size` bytes, rounded up to the alignment."""
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a segment for processes of the same node."""

    path: str
    inode: int
    """Distinguishes the segment from an older one with the same path."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor, contiguous."""

    name: str
    dtype: str
    """torch's name of the type."""
    shape: tuple[int, ...]
    offset: int
    """Bytes from the beginning of all tensors that are offered together."""


def node() -> str:
    """Return an id that two processes share if and only if each can map the other's segments."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


class Segment:
    """Shared memory of this process, for other processes to map."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        """`descriptor`: of a segment that another process has made and this process adopts."""
        self.adopted = descriptor is not None
        if descriptor is None:
            descriptor = os.memfd_create("weights")
            os.ftruncate(descriptor, size)
        self._file = os.fdopen(descriptor, "r+b")
        self.descriptor = descriptor
        self.buffer = mmap.mmap(descriptor, size)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.address = Address(path, os.fstat(descriptor).st_ino, size)


def adopt(address: Address) -> Segment:
    """Map another process's segment, and keep it after that process ends. Raises OSError."""
    return Segment(address.size, os.open(address.path, os.O_RDWR))


def attach(address: Address) -> mmap.mmap:
    """Map a segment read-only. Raises OSError if the process that shares it has ended."""
    descriptor = os.open(address.path, os.O_RDONLY)
    try:
        return mmap.mmap(descriptor, address.size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
