"""The places from which the state of this machine is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from entrypoint.machine import interfaces
from entrypoint.machine.gpus import amd, nvidia


@dataclass(frozen=True, slots=True)
class Machine:
    """The kernel's paths and the GPUs' libraries. Tests give others."""

    shm: Path = Path("/dev/shm")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    sys: Path = Path("/sys")
    rocm: Path = Path("/opt/rocm")
    nvml: Callable[[], nvidia.Nvml | None] = nvidia.load
    amdsmi: Callable[[], amd.AmdSmi | None] = amd.load
    addresses: Callable[[], Mapping[str, Sequence[str]]] = interfaces.addresses


THIS_MACHINE = Machine()
