"""The questions that checks ask a GPU of any maker, and the answers.

Every answer may be None: the GPU, driver or container does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class GpuError(Exception):
    """The GPU, or its driver, does not answer; the sentence is the library's."""


@dataclass(frozen=True, slots=True)
class MemoryErrors:
    """Since the driver was loaded."""

    uncorrected: int
    corrected: int


@dataclass(frozen=True, slots=True)
class RemappedRows:
    uncorrected: int
    pending: bool
    """Whether the remapping takes effect only after a reset."""
    failed: bool
    """Whether no spare row was left."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """Degrees Celsius."""

    now: float
    slowdown: float | None
    """The limit above which the hardware clocks down."""


@dataclass(frozen=True, slots=True)
class Pcie:
    width: int
    """Lanes in use."""
    max_width: int
    max_generation: int | None
    """The best of GPU and slot together. An idle link may run slower."""


@dataclass(frozen=True, slots=True)
class Links:
    """NVLink or XGMI."""

    up: int
    down: int


@dataclass(frozen=True, slots=True)
class LinkErrors:
    """Of all links together, since the driver was loaded."""

    crc: int
    """Packets with a wrong checksum, which are sent again."""
    repaired: int
    """Replays and recoveries of a link."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    used: int
    total: int


class Gpu(Protocol):
    """Every method raises GpuError if the GPU does not answer."""

    @property
    def index(self) -> int: ...
    def model(self) -> str: ...
    def ids(self) -> tuple[str, ...]:
        """What identifies it, or each of its parts that the node uses; () if unknown."""

    def recovery_action(self) -> str | None:
        """The action that the driver asks for, in words; "" for none."""

    def memory_errors(self) -> MemoryErrors | None: ...
    def remapped_rows(self) -> RemappedRows | None: ...
    def slowdowns(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Why the clocks are held down now: by a fault of the machine, and by its limits."""

    def temperature(self) -> Temperature | None: ...
    def pcie(self) -> Pcie | None: ...
    def links(self) -> Links | None: ...
    def link_errors(self) -> LinkErrors | None: ...
    def pcie_replays(self) -> int | None:
        """Packets that the PCIe link has sent again since the driver was loaded."""

    def partition(self) -> str | None:
        """The partition mode; "" if the GPU is not divided."""

    def memory(self) -> Memory | None: ...
    def busy(self) -> float | None:
        """Share of the last moment in which it computed, 0 to 1."""

    def clock(self) -> int | None:
        """MHz at which it computes now."""

    def power(self) -> float | None:
        """Watts that it draws now."""

    def processes(self) -> tuple[int, ...]:
        """Ids of the processes that hold memory, as far as this node can see them."""
