"""The words that a script's programs get: bash itself runs it, and stubs write their words down."""

from __future__ import annotations

import subprocess
from pathlib import Path

PROGRAMS = ("python3", "python", "torchrun", "accelerate", "deepspeed", "trl", "uv", "ray")
STUB = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" >> "$WORDS"
printf '\\n\\0' >> "$WORDS"
"""


def words_of(script: str, directory: Path) -> list[list[str]]:
    """Return the words of each program that the script starts, which finds no other program.

    It starts them one after the other: those of a pipe would write at once.
    """
    stubs, words = directory / "stubs", directory / "words"
    stubs.mkdir(exist_ok=True)
    words.write_bytes(b"")
    for name in PROGRAMS:
        (stubs / name).write_text(STUB)
        (stubs / name).chmod(0o755)
    environment = {
        "PATH": str(stubs),
        "WORDS": str(words),
        "HOME": "/home/me",
        "PWD": str(directory),
    }
    argv = ["/bin/bash", "-c", script]
    subprocess.run(argv, env=environment, cwd=directory, check=True, timeout=20)
    rows = words.read_text().split("\n\0")
    return [row.split("\0")[:-1] for row in rows if row]
