"""What is installed on this node, and what the node has: the head compares it at check-in.

Versions are read from the metadata of installed packages, so that nothing heavy is imported.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TypeVar

from contract.durations import counted
from contract.launch import distribution
from entrypoint.config.settings import Settings
from entrypoint.machine import infiniband, interfaces, limits
from entrypoint.machine.gpus import amd, discover
from entrypoint.machine.gpus.protocol import Gpu, GpuError
from entrypoint.machine.view import THIS_MACHINE, Machine

T = TypeVar("T")

PACKAGES = ("ray", "torch", "vllm", "transformers")
CUDA_PACKAGES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
COLLECTIVE_PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "HSA_")
"""How the variables begin that must be the same on all nodes."""
LONGEST_SHOWN = 1000
"""Characters of a variable's value that nodes compare."""
BUSY_LOAD = 2
"""Programs per CPU that run or wait, above which a machine is too busy to answer in time."""


def versions(settings: Settings, machine: Machine = THIS_MACHINE) -> dict[str, str]:
    """Versions of Python, packages and drivers, and the image's digest; "" for what is missing."""
    return {
        "python": platform.python_version(),
        **{package: installed(package) for package in PACKAGES},
        "rollcall": installed(distribution.NAME),
        "cuda": cuda(),
        "rocm": limits.read(machine.rocm / ".info" / "version"),
        "nccl": first_installed(NCCL_PACKAGES),
        "rccl": rccl(machine.rocm),
        "driver": driver(machine.sys),
        "gpu": gpu_model(machine.proc, machine.sys),
        "image": settings.image or "",
    }


def installed(package: str) -> str:
    """The installed version; "" if the package is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def first_installed(packages: Sequence[str]) -> str:
    return next(filter(None, map(installed, packages)), "")


def cuda() -> str:
    """The version of CUDA in torch's packages, such as 13.0.48; "" if they have none."""
    return first_installed(CUDA_PACKAGES)


def driver(sys: Path) -> str:
    """The version of the GPUs' kernel driver: NVIDIA's, else AMD's."""
    found = (limits.read(sys / "module" / name / "version") for name in ("nvidia", "amdgpu"))
    return next(filter(None, found), "")


def rccl(rocm: Path) -> str:
    """The version in the name of the library's file: 1.0.70200 for librccl.so.1.0.70200."""
    library = rocm / "lib" / "librccl.so"
    return library.resolve().name.partition(".so.")[2] if library.exists() else ""


def gpu_model(proc: Path, sys: Path) -> str:
    """The model of the first GPU, from the drivers' files, which wakes no GPU; "" if none."""
    for path in sorted((proc / "driver" / "nvidia" / "gpus").glob("*/information")):
        for line in limits.read(path).splitlines():
            name, _, value = line.partition(":")
            if name == "Model":
                return value.strip()
    devices = sorted((sys / "class" / "drm").glob("renderD*/device"))
    of_amd = [device for device in devices if limits.read(device / "vendor") == amd.VENDOR]
    return amd.SysfsGpu(0, of_amd[0], sys).model() if of_amd else ""


def collective_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer NCCL, RCCL and gloo, each value on one line."""
    return {
        name: " ".join(text.split())[:LONGEST_SHOWN]
        for name, text in environ.items()
        if name.startswith(COLLECTIVE_PREFIXES)
    }


def inventory(
    settings: Settings, address: str = "", machine: Machine = THIS_MACHINE
) -> dict[str, float]:
    """What this node offers: usable CPUs, bytes of memory, visible GPUs, and its network.

    `gpu_memory_bytes`: of the node's smallest GPU; 0 if it has none, or none says it.

    `mtu`: bytes, of the interface that has the node's `address`; 0 for a loopback.
    `link_gbits`: Gbit/s of the links that NCCL uses; 0 if they do not say.
    """
    gpus = settings.num_gpus
    found = interfaces.interfaces(machine.sys, machine.addresses())
    own = interfaces.holding(address, found)
    rdma_gbits = infiniband.used_gbits(machine.sys, settings.environ)
    return {
        "cpus": offered_cpus(settings),
        "memory_bytes": limits.memory_limit(),
        "gpus": len(discover.of_node(settings, machine)) if gpus is None else gpus,
        "gpu_memory_bytes": gpu_memory(settings, machine),
        "mtu": own.mtu if own else 0,
        "link_gbits": rdma_gbits or (own.gbits if own else 0.0),
    }


def offered_cpus(settings: Settings) -> int:
    """The CPUs that this node offers to Ray: ROLLCALL_NUM_CPUS, else those that it may use."""
    return limits.usable_cpus() if settings.num_cpus is None else settings.num_cpus


def load() -> str:
    """Return how busy this machine is, in words: load 45 on 2 CPUs."""
    try:
        busy = os.getloadavg()[0]
    except OSError:
        return "load unknown"
    return f"load {busy:.0f} on {counted(os.cpu_count() or 1, 'CPU')}"


def is_busy() -> bool:
    """Whether programs wait so long for a CPU that a short question may have no answer in time."""
    try:
        return os.getloadavg()[0] > BUSY_LOAD * (os.cpu_count() or 1)
    except OSError:
        return False


def gpu_memory(settings: Settings, machine: Machine) -> int:
    """The bytes of the smallest GPU that this node uses; 0 if none says it."""
    if settings.gpu_memory is not None:
        return settings.gpu_memory
    found = _asked(settings, machine, lambda gpu: gpu.memory())
    return min((memory.total for memory in found if memory), default=0)


def gpu_ids(settings: Settings, machine: Machine = THIS_MACHINE) -> tuple[str, ...]:
    """What identifies the GPUs that this node uses; without those that do not say it."""
    return tuple(chain.from_iterable(_asked(settings, machine, lambda gpu: gpu.ids())))


def _asked(settings: Settings, machine: Machine, ask: Callable[[Gpu], T]) -> list[T]:
    """The answers of the GPUs that this node uses; [] if one does not answer."""
    try:
        with discover.opened(settings, machine) as gpus:
            used = [] if isinstance(gpus, str) else gpus
            return [ask(gpu) for gpu in used if gpu and not isinstance(gpu, GpuError)]
    except GpuError:
        return []
