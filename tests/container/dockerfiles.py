"""The stages of a Dockerfile."""

from __future__ import annotations

import re

from tests.support.repository import ROOT


def stages(dockerfile: str) -> dict[str, str]:
    """Name → lines after FROM, without the remarks that introduce the next stage."""
    text = (ROOT / dockerfile).read_text()
    parts = re.split(r"^FROM \S+ AS (\S+)\n", text, flags=re.MULTILINE)[1:]
    bodies = (re.sub(r"(\n|^#.*)+\Z", "\n", body, flags=re.MULTILINE) for body in parts[1::2])
    return dict(zip(parts[::2], bodies, strict=True))
