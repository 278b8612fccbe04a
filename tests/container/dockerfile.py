"""The stages of the Dockerfile."""

from __future__ import annotations

import re

from tests.support.repository import ROOT

DOCKERFILE = ROOT / "Dockerfile"


def stages() -> dict[str, str]:
    """Return name → lines after FROM, without the remarks that introduce the next stage."""
    parts = re.split(r"^FROM \S+ AS (\S+)\n", DOCKERFILE.read_text(), flags=re.MULTILINE)[1:]
    bodies = (re.sub(r"(\n|^#.*)+\Z", "\n", body, flags=re.MULTILINE) for body in parts[1::2])
    return dict(zip(parts[::2], bodies, strict=True))
