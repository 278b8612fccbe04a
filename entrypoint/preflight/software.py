"""Are Ray and torch installed, in the versions that this program was made for?"""

from __future__ import annotations

import platform
from importlib import metadata

from contract.launch import distribution
from entrypoint.config.check_names import CheckName
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.machine.inventory import installed
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict


def ray(context: Context) -> Finding:
    version, wanted = installed("ray"), _pinned_ray()
    if not version:
        remedy = f"use the image, or `{distribution.install('node')}`"
        return Finding(Verdict.FAIL, "Ray is not installed", remedy)
    evidence = f"Ray {version}, Python {platform.python_version()}"
    if wanted and version != wanted:
        # The head decides: it refuses a node whose Ray differs from its own.
        remedy = f"use one image everywhere: Ray {wanted} is what this program was made for"
        return Finding(Verdict.WARN, evidence, remedy)
    return Finding(Verdict.PASS, evidence)


def _pinned_ray() -> str | None:
    """Return the version of Ray that this program's own metadata asks for exactly."""
    try:
        requirements = metadata.requires(distribution.NAME) or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        name, exact, version = requirement.partition("==")
        if exact and name.partition("[")[0] == "ray":
            return version.partition(";")[0].strip()
    return None


def torch(context: Context) -> Finding:
    if version := installed("torch"):
        return Finding(Verdict.PASS, f"torch {version}")
    if not RECIPES[context.settings.recipe].own_trainer:
        return Finding(Verdict.SKIP, "torch is not installed; this recipe may not need it")
    remedy = f"use the image, or `{distribution.install('trainer')}`"
    return Finding(Verdict.FAIL, "torch is not installed, and the trainer needs it", remedy)


CHECKS = (
    Check(CheckName.VERSIONS_RAY, "is Ray installed, in the version that Rollcall requires?", ray),
    Check(CheckName.VERSIONS_TORCH, "is torch installed, if the recipe needs it?", torch),
)
