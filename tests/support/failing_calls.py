"""System calls that fail, are slow or hang below one directory, in processes of their own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest


@cache
def library() -> Path:
    """The shim, compiled once a process of tests."""
    if shutil.which("gcc") is None:
        pytest.skip("the shim of system calls needs gcc")
    built = Path(tempfile.mkdtemp(prefix="failing-calls-")) / "failing_calls.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    return built


def variables(*below: Path, calls: str = "", notes: Path | None = None) -> dict[str, str]:
    """The variables of a process; `failing_calls.c` says what they mean."""
    noted = {} if notes is None else {"FAILING_NOTES": str(notes)}
    places = ":".join(map(str, below))
    return {"FAILING_BELOW": places, "FAILING_CALLS": calls, "LD_PRELOAD": str(library())} | noted


def noted(notes: Path, number: int) -> set[str]:
    """The calls that processes have made below the directory of this number; 1 is the first."""
    rows = (line.split() for line in notes.read_text().splitlines())
    return {call for place, call in rows if int(place) == number}
