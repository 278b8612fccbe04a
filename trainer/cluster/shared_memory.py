"""Memory that processes of one node share.

It is anonymous (memfd): the kernel frees it when the last process that maps it has ended, however
it ended, and it needs no room under /dev/shm, of which a container has 64 MB by default.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from trainer.cluster.tcp_stream import Source


@dataclass(frozen=True, slots=True)
class Address:
    """Where a process of the same node finds a segment."""

    path: str
    inode: int
    """Tells it from another segment that had the same path before."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor, contiguous."""

    name: str
    dtype: str
    """torch's name of it."""
    shape: tuple[int, ...]
    offset: int
    """Bytes from the beginning of all that are offered together."""


Part = tuple[Entry, ...]
"""What travels together."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Tensors in a segment: a few hundred bytes that stand for megabytes."""

    address: Address
    entries: Part
    begin: int
    end: int
    """Bytes from the segment's beginning, between which the tensors lie."""
    source: Source | None = None
    """Where other nodes read them."""


@dataclass(frozen=True, slots=True)
class Lent:
    """A part of the weights in a GPU's memory, for processes there to read."""

    part: Part
    gpu: str
    """Its UUID."""
    handle: bytes
    """What torch opens the memory with, pickled: an address and its kind, not what is in it."""


def node() -> str:
    """The same for two processes exactly where one can map what the other shares."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


class Segment:
    """Shared memory of this process's own, for others to map."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        """`descriptor`: of one that another process has made, and that lives as long as both."""
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
    """Another process's segment, which stays when that process ends. Raises OSError."""
    return Segment(address.size, os.open(address.path, os.O_RDWR))


def attach(address: Address) -> mmap.mmap:
    """To read only. Raises OSError where the process that shared it has ended."""
    descriptor = os.open(address.path, os.O_RDONLY)
    try:
        return mmap.mmap(descriptor, address.size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
