"""The machine's resources that this process may use: cgroup limits (v1, v2), affinity, memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

MIB = 1024**2
GIB = 1024**3


def sized(size: float) -> str:
    """Bytes in words: `512 MiB`, `3.5 GiB`."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def visible_memory() -> int:
    """Bytes of the machine's memory."""
    return int(psutil.virtual_memory().total)


def memory_limit(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process may use: the smallest cgroup limit, at most the machine's memory."""
    limits = _numbers(proc, cgroup, "memory", "memory.max", "memory.limit_in_bytes")
    return min([visible_memory(), *limits])


def pids_limit(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Processes and threads that the cgroup may hold; None if unlimited."""
    return min(_numbers(proc, cgroup, "pids", "pids.max", "pids.max"), default=None)


def cpu_limit(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """CPUs that this process may use: its affinity and the smallest quota; 0.5 is half a CPU."""
    quotas = [float(len(os.sched_getaffinity(0)))]
    for text in _texts(proc, cgroup, "", "cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    for directory in _directories(proc, cgroup, "cpu"):
        quota, period = (read(directory / f"cpu.cfs_{kind}_us") for kind in ("quota", "period"))
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return min(quotas)


def usable_cpus() -> int:
    return max(1, int(cpu_limit()))


def _numbers(
    proc: Path, cgroup: Path, controller: str, unified_file: str, legacy_file: str
) -> list[int]:
    texts = [
        *_texts(proc, cgroup, "", unified_file),
        *_texts(proc, cgroup, controller, legacy_file),
    ]
    return [int(text) for text in texts if text.isdigit()]


def _texts(proc: Path, cgroup: Path, controller: str, file: str) -> Iterator[str]:
    for directory in _directories(proc, cgroup, controller):
        yield read(directory / file)


def _directories(proc: Path, cgroup: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup for `controller` ("": version 2) and all above it.

    Inside a container the path in `/proc/self/cgroup` may be the host's; then only the root of
    the mount exists, and it is the container's own.
    """
    root = cgroup / controller if controller else cgroup
    for line in read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            own = Path(path.strip("/"))
            yield from (root / part for part in (own, *own.parents) if (root / part).is_dir())


def read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
