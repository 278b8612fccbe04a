"""Commands of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path


def do(*command: str | Path, check: bool = True) -> str:
    """What it prints. Raises AssertionError, with what it complains of, where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
    return done.stdout.strip()
