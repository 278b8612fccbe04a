"""The network's settings in compose/env."""

from __future__ import annotations

from pathlib import Path

from tests.support.repository import ROOT

ENV_FILES = sorted((ROOT / "compose" / "env").iterdir())


def variables_of(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)
