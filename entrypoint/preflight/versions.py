"""What runs on this node, and what it has: told at check-in, where the head compares it.

Versions are read from the installed packages' metadata: nothing heavy is imported for them.
"""

from __future__ import annotations

import platform
from importlib import metadata

from entrypoint.preflight import gpu, limits
from entrypoint.preflight.check import Check, Context, Finding, Verdict
from entrypoint.settings import Settings

PACKAGES = ("ray", "torch", "rollcall")


def versions(settings: Settings) -> dict[str, str]:
    """Python to the patch, packages, and the image's digest; "" for what is not there."""
    return {
        "python": platform.python_version(),
        **{package: installed(package) for package in PACKAGES},
        "image": settings.image or "",
    }


def inventory(settings: Settings) -> dict[str, float]:
    """What this node offers: CPUs, bytes of memory that it may use, GPUs."""
    cpus, gpus = settings.num_cpus, settings.num_gpus
    return {
        "cpus": limits.usable_cpus() if cpus is None else cpus,
        "memory_bytes": limits.memory_limit(),
        "gpus": gpu.count() if gpus is None else gpus,
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
    Check("versions.ray", "is Ray there, in the version this was made for?", ray),
    Check("versions.torch", "is torch there, where the recipe needs it?", torch),
)
