"""Which GPUs this node shows, by their device files."""

from __future__ import annotations

import re
from pathlib import Path

from entrypoint.preflight.check import Check, Context, Finding, Verdict


def count(dev: Path = Path("/dev")) -> int:
    """GPUs by their device files: NVIDIA's, else AMD's render nodes beside /dev/kfd."""
    nvidia = [path for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    if nvidia or not (dev / "kfd").exists():
        return len(nvidia)
    return len(list(dev.glob("dri/renderD*")))


def present(context: Context) -> Finding:
    found = count(context.dev)
    if not found:
        return Finding(Verdict.SKIP, "no GPU on this machine")
    return Finding(Verdict.PASS, f"{found} GPU device files")


CHECKS = (Check("gpu.present", "which GPUs are there?", present),)
