"""SIGTERM to a node that still waits: it ends at once, with 143."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def test_a_worker_that_waits_for_the_head_ends_within_5_seconds(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "entrypoint"],
        env={
            "PATH": os.environ["PATH"],
            "RAY_WORKER": "1",
            "HEAD_POD_ID": "nosuch",
            "ROLLCALL_RUN_DIR": str(tmp_path),
            "ROLLCALL_TOKEN": "correct-horse-battery",
            "ROLLCALL_PREFLIGHT": "off",
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert "waiting for the head's name" in worker.stdout.readline()
        began = time.monotonic()
        worker.terminate()
        assert worker.wait(10) == 143
        assert time.monotonic() - began < 5
    finally:
        worker.kill()
        worker.wait()
