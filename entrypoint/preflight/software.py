"""What runs on this node, and what it has: told at check-in, where the head compares it.

Versions are read from the installed packages' metadata: nothing heavy is imported for them.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from entrypoint.config.check_names import CheckName
from entrypoint.config.settings import Settings
from entrypoint.machine import infiniband, interfaces, limits
from entrypoint.machine.gpus import amd, discover
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import About, Finding, Verdict

PACKAGES = ("ray", "torch", "vllm", "transformers", "rollcall")
CUDA_PACKAGES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
OF_COLLECTIVES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "HSA_")
"""What variables begin with that must not differ between nodes."""
LONGEST_SHOWN = 1000
"""Characters of a variable's value that nodes compare."""


def versions(
    settings: Settings, sys: Path = Path("/sys"), rocm: Path = Path("/opt/rocm")
) -> dict[str, str]:
    """Python to the patch, packages, drivers, the image's digest; "" for what is not there."""
    return {
        "python": platform.python_version(),
        **{package: installed(package) for package in PACKAGES},
        "cuda": cuda(),
        "rocm": limits.read(rocm / ".info" / "version"),
        "nccl": first_installed(NCCL_PACKAGES),
        "rccl": rccl(rocm),
        "driver": driver(sys),
        "gpu": gpu_model(Path("/proc"), sys),
        "image": settings.image or "",
    }


def cuda() -> str:
    """The CUDA that torch's packages bring, as 13.0.48; "" where they bring none."""
    return first_installed(CUDA_PACKAGES)


def driver(sys: Path) -> str:
    """The GPUs' kernel driver: NVIDIA's, else AMD's."""
    found = (limits.read(sys / "module" / name / "version") for name in ("nvidia", "amdgpu"))
    return next(filter(None, found), "")


def rccl(rocm: Path) -> str:
    """As the library's own file is named, 1.0.70200 for librccl.so.1.0.70200."""
    library = rocm / "lib" / "librccl.so"
    return library.resolve().name.partition(".so.")[2] if library.exists() else ""


def gpu_model(proc: Path, sys: Path) -> str:
    """By the drivers' files, without waking a GPU up; "" where there are none."""
    for path in sorted((proc / "driver" / "nvidia" / "gpus").glob("*/information")):
        for line in limits.read(path).splitlines():
            name, _, value = line.partition(":")
            if name == "Model":
                return value.strip()
    devices = sorted((sys / "class" / "drm").glob("renderD*/device"))
    of_amd = [device for device in devices if limits.read(device / "vendor") == amd.VENDOR]
    return amd.SysfsGpu(0, of_amd[0], sys).model() if of_amd else ""


def first_installed(packages: Sequence[str]) -> str:
    return next(filter(None, map(installed, packages)), "")


def of_collectives(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer NCCL, RCCL and gloo; each in a line, to be compared and shown."""
    return {
        name: " ".join(text.split())[:LONGEST_SHOWN]
        for name, text in environ.items()
        if name.startswith(OF_COLLECTIVES)
    }


def inventory(
    settings: Settings,
    address: str = "",
    sys: Path = Path("/sys"),
    dev: Path = Path("/dev"),
) -> dict[str, float]:
    """What this node offers: CPUs, bytes of memory that it may use, GPUs that no variable hides;
    the MTU, in bytes, of the interface with its `address`, 0 for a loopback's; Gbit/s of the links
    that NCCL uses, 0 where they do not tell."""
    cpus, gpus = settings.num_cpus, settings.num_gpus
    own = interfaces.holding(address, interfaces.interfaces(sys, interfaces.addresses()))
    return {
        "cpus": limits.usable_cpus() if cpus is None else cpus,
        "memory_bytes": limits.memory_limit(),
        "gpus": len(discover.of_node(settings, dev)) if gpus is None else gpus,
        "mtu": own.mtu if own else 0,
        "link_gbits": infiniband.used_gbits(sys, settings.environ) or (own.gbits if own else 0.0),
    }


def installed(package: str) -> str:
    """The installed version; "" where the package is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def ray(context: Context) -> Finding:
    version, wanted = installed("ray"), pinned("ray")
    if not version:
        return Finding(
            Verdict.FAIL, "Ray is not installed", "use the product's image or `make setup`"
        )
    evidence = f"Ray {version}, Python {platform.python_version()}"
    if wanted and version != wanted:
        # The head decides: it refuses a node whose Ray differs from its own.
        remedy = f"use one image everywhere: Ray {wanted} is what this program was made for"
        return Finding(Verdict.WARN, evidence, remedy)
    return Finding(Verdict.PASS, evidence)


def pinned(package: str) -> str | None:
    """The version of `package` that this program's own metadata asks for exactly."""
    try:
        requirements = metadata.requires("rollcall") or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        name, exact, version = requirement.partition("==")
        if exact and name.partition("[")[0] == package:
            return version.partition(";")[0].strip()
    return None


def torch(context: Context) -> Finding:
    if version := installed("torch"):
        return Finding(Verdict.PASS, f"torch {version}")
    if context.settings.recipe != "builtin":
        return Finding(Verdict.SKIP, "torch is not installed; this recipe may not need it")
    remedy = "install the trainer's requirements: pip install 'rollcall[trainer]'"
    return Finding(Verdict.FAIL, "torch is not installed, and the builtin trainer needs it", remedy)


CHECKS = (
    Check(
        CheckName.VERSIONS_RAY,
        "is Ray there, in the version this was made for?",
        ray,
        About(
            evidence="the installed package against this program's own requirement",
            threshold="fails where it is missing, warns where it is another",
            source="the head refuses a node whose Ray differs from its own (nodes.versions)",
            remedy="use one image everywhere",
        ),
    ),
    Check(
        CheckName.VERSIONS_TORCH,
        "is torch there, where the recipe needs it?",
        torch,
        About(
            evidence="the installed package",
            threshold="fails where it is missing and the recipe is the builtin one",
            source="the trainer computes with it",
            remedy="use the image, or install the trainer's requirements",
        ),
    ),
)
