"""Which checkpoints stay on disk."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contract.manifest import MANIFEST, checkpoint_path, fault_of, steps_on_disk
from contract.run_dir import sync_directory


@dataclass(frozen=True, slots=True)
class Retention:
    """How many whole checkpoints stay, and how many bytes they may take together."""

    count: int = 1
    bytes: float = math.inf


@dataclass(frozen=True, slots=True)
class OnDisk:
    whole: bool
    bytes: int


def superfluous(found: Mapping[int, OnDisk], rule: Retention) -> list[int]:
    """Steps to delete: all but the newest whole ones that `rule` has room for.

    The newest whole one stays in any case. Torn ones go too, unless they are newer than every
    whole one: then there is nothing better yet, and what is left of them may be worth a look.
    """
    newest_first = sorted(found, reverse=True)
    whole = [step for step in newest_first if found[step].whole]
    room = itertools.accumulate(found[step].bytes for step in whole)
    fits = sum(1 for total in room if total <= rule.bytes)
    kept = whole[: max(1, min(rule.count, fits))]
    return [step for step in newest_first if kept and step < kept[0] and step not in kept]


def apply(checkpoints: Path, rule: Retention, newest: int) -> None:
    """Delete superfluous checkpoints; each loses its manifest first: none is half there.

    `newest` is the step of the one just written. A later one is what the run has passed over as
    broken, though its sizes may be right: it counts for nothing, and stays until its step is past.
    """
    found = {
        step: _examined(checkpoint_path(checkpoints, step))
        for step in steps_on_disk(checkpoints)
        if step <= newest
    }
    for step in superfluous(found, rule):
        directory = checkpoint_path(checkpoints, step)
        (directory / MANIFEST).unlink(missing_ok=True)
        sync_directory(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _examined(directory: Path) -> OnDisk:
    return OnDisk(
        # Sizes suffice here: the newest was written just now, and checksums cost a full read.
        whole=fault_of(directory, checksums=False) is None,
        bytes=sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()),
    )
