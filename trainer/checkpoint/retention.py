"""Which checkpoints stay on disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from trainer.contract import MANIFEST, checkpoint_path, fault_of, steps_on_disk, sync_directory


def superfluous(whole: Mapping[int, bool], keep: int) -> list[int]:
    """Steps to delete, given which checkpoints are whole: all but the newest `keep` whole ones.

    Torn ones go too, unless they are newer than every whole one: then there is nothing better
    yet, and what is left of them may be worth a look.
    """
    newest_first = sorted(whole, reverse=True)
    kept = [step for step in newest_first if whole[step]][: max(keep, 1)]
    return [step for step in newest_first if kept and step < kept[0] and step not in kept]


def apply(checkpoints: Path, keep: int) -> None:
    """Delete superfluous checkpoints; each loses its manifest first, so none is ever half there."""
    whole = {
        # Sizes suffice here: the newest was written just now, and checksums cost a full read.
        step: fault_of(checkpoint_path(checkpoints, step), checksums=False) is None
        for step in steps_on_disk(checkpoints)
    }
    for step in superfluous(whole, keep):
        directory = checkpoint_path(checkpoints, step)
        (directory / MANIFEST).unlink(missing_ok=True)
        sync_directory(directory)
        shutil.rmtree(directory, ignore_errors=True)
