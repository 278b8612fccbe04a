"""Starts the programs of bench.crowd, which print their results as rows of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def started(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", f"bench.crowd.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def row_of(process: subprocess.Popen[str]) -> dict[str, float]:
    """The next row that it prints; its sentences are passed over."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            row: dict[str, float] = json.loads(line)
            return row
    raise SystemExit(f"{process.args!r} ended with {process.wait()}")
