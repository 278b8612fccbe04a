"""A worker's program that waits for a head that never comes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "waits"


def environment(run_dir: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "RAY_WORKER": "1",
        "HEAD_POD_ID": "nosuch",
        "ROLLCALL_RUN_DIR": str(run_dir),
        "ROLLCALL_TOKEN": "correct-horse-battery",
        "ROLLCALL_PREFLIGHT": "off",
        "ROLLCALL_NODE_NAME": NAME,
    }


@contextmanager
def worker_that_waits(run_dir: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    """For a head that never comes."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "entrypoint"],
        env=environment(run_dir) | env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert any("waiting for the head's name" in line for line in worker.stdout)
        yield worker
    finally:
        worker.kill()
        worker.wait()
