"""A file system of its own for a directory, which can be filled, frozen and taken away."""

from __future__ import annotations

from pathlib import Path

from tests.container.faults.machine import do


def make(at: Path, size: int) -> None:
    """Mount an empty one of `size` bytes at `at`; its image lies beside it."""
    image = at.with_name(f"{at.name}.img")
    with image.open("wb") as file:
        file.truncate(size)
    do("mkfs.ext4", "-q", "-O", "^has_journal", image)
    do("mount", "-o", "loop", image, at)


def remove(at: Path) -> None:
    do("umount", "-l", at, check=False)


def fill(filler: Path) -> None:
    """Fill the disk of this file to the last byte; what others delete there is filled, too."""
    with filler.open("ab", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
