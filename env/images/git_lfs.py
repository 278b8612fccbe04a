"""Files of which a clone without Git LFS has a pointer: images, data sets, models."""

from __future__ import annotations

from pathlib import Path

BEGINNING = b"version https://git-lfs.github.com/spec/"
"""https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md"""
SAID = (
    "is a Git LFS pointer, and not the data: run `git lfs pull` in its clone, or fetch it by "
    "`hf download`"
)


def is_pointer(path: Path) -> bool:
    """Return whether a file is a pointer. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING
