"""Faults of the run directory's disk."""

from __future__ import annotations

import time
from pathlib import Path

from tests.container.faults import disk
from tests.container.faults.fault import Fault
from tests.container.faults.machine import do
from tests.container.faults.reward import RewardServer
from tests.container.faults.stage import Stage

DISK_BYTES = 384 * 2**20


class OnDisk(Stage):
    """A head alone, whose run directory is a mount of a disk of its own."""

    def __init__(self, root: Path, data: Path, reward: RewardServer) -> None:
        super().__init__(root, data, reward, workers=0)
        self.disk = root / "disk"
        self.disk.mkdir()
        disk.make(self.disk, DISK_BYTES)
        self.mount()

    def mount(self) -> None:
        do("mount", "--bind", self.disk, self.run.root)

    def close(self) -> None:
        do("fsfreeze", "-u", self.disk, check=False)
        super().close()
        disk.remove(self.run.root)
        disk.remove(self.disk)


def filler(stage: OnDisk) -> Path:
    return stage.run.root / "filler"


def fill(stage: OnDisk) -> None:
    disk.fill(filler(stage))


def make_read_only(stage: OnDisk) -> None:
    """For whatever is opened from now on: a second mount, over the first."""
    stage.mount()
    do("mount", "-o", "remount,bind,ro", stage.run.root)


def take_away(stage: OnDisk) -> None:
    """The upper mount; where there is but one, an empty directory is left."""
    do("umount", "-l", stage.run.root)


def crawl(stage: OnDisk) -> None:
    """For 12 s, the disk takes a write now and then."""
    for _ in range(8):
        freeze(stage)
        time.sleep(1.2)
        thaw(stage)
        time.sleep(0.3)


def freeze(stage: OnDisk) -> None:
    do("fsfreeze", "-f", stage.disk)


def thaw(stage: OnDisk) -> None:
    do("fsfreeze", "-u", stage.disk)


STORAGE = frozenset({"storage"})
FAULTS = [
    Fault(
        name="disk-full",
        sentence="the run directory's disk is full for 8 s",
        inject=fill,
        heal=lambda stage: filler(stage).unlink(),
        after=8,
        deadline=90,
        classes=STORAGE,
    ),
    Fault(
        name="disk-read-only",
        sentence="the run directory's disk becomes read-only for 8 s",
        inject=make_read_only,
        heal=take_away,
        after=8,
        deadline=90,
        classes=STORAGE,
    ),
    Fault(
        name="disk-slow",
        sentence="the run directory's disk takes a write only now and then, for 12 s",
        inject=crawl,
        deadline=60,
        restarts=False,
    ),
    Fault(
        name="disk-silent",
        sentence="the run directory's disk answers nobody for 12 s",
        inject=freeze,
        heal=thaw,
        after=12,
        deadline=60,
        restarts=False,
    ),
    Fault(
        name="disk-gone",
        sentence="the run directory's mount is lost for 8 s, and an empty directory in its place",
        inject=take_away,
        heal=OnDisk.mount,
        after=8,
        deadline=120,
        classes=STORAGE,
    ),
]
