"""SIGTERM to a node that still waits: it ends at once, with 143."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def worker_that_waits(run_dir: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    """For a head that never comes."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "entrypoint"],
        env={
            "PATH": os.environ["PATH"],
            "RAY_WORKER": "1",
            "HEAD_POD_ID": "nosuch",
            "ROLLCALL_RUN_DIR": str(run_dir),
            "ROLLCALL_TOKEN": "correct-horse-battery",
            "ROLLCALL_PREFLIGHT": "off",
            **env,
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert "waiting for the head's name" in worker.stdout.readline()
        yield worker
    finally:
        worker.kill()
        worker.wait()


def test_a_worker_that_waits_for_the_head_ends_within_5_seconds(tmp_path: Path) -> None:
    with worker_that_waits(tmp_path) as worker:
        began = time.monotonic()
        worker.terminate()
        assert worker.wait(10) == 143
        assert time.monotonic() - began < 5
