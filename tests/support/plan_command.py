"""`rollcall plan` as a program."""

from __future__ import annotations

import os
import subprocess
import sys


def run_plan(
    environ: dict[str, str], *arguments: str, interpreter: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, *interpreter, "-m", "entrypoint", "plan", *arguments],
        env=kept | environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
