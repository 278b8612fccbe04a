"""Which checkpoints stay on disk, and the export of the best policy so far."""

from __future__ import annotations

import itertools
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contract.manifest import (
    ANY_RUN,
    CHECKPOINT_NAME,
    MANIFEST,
    Lineage,
    checkpoint_path,
    fault_of,
    is_strange,
    steps_on_disk,
)
from contract.run_dir import sync_directory
from trainer.checkpoint import head_file_store
from trainer.checkpoint.protocol import Exportable
from trainer.cluster.worker_group import WorkerGroup
from trainer.config.config import Config

OURS = re.compile(rf"{CHECKPOINT_NAME.pattern}|\.{CHECKPOINT_NAME.pattern}\.incoming")
"""Names of an exported policy, and of one whose export was killed."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How many complete checkpoints stay, and how many bytes they may take together."""

    count: int = 1
    bytes: float = math.inf


@dataclass(frozen=True, slots=True)
class OnDisk:
    whole: bool
    bytes: int


def superfluous(found: Mapping[int, OnDisk], rule: Retention) -> list[int]:
    """Return the steps to delete: all but the newest complete checkpoints within `rule`.

    The newest complete checkpoint always stays. Incomplete ones are deleted unless they are newer
    than every complete one: then there is nothing better yet, and they may be worth a look.
    """
    newest_first = sorted(found, reverse=True)
    whole = [step for step in newest_first if found[step].whole]
    room = itertools.accumulate(found[step].bytes for step in whole)
    fits = sum(1 for total in room if total <= rule.bytes)
    kept = whole[: max(1, min(rule.count, fits))]
    return [step for step in newest_first if kept and step < kept[0] and step not in kept]


def apply(checkpoints: Path, rule: Retention, newest: int, lineage: Lineage = ANY_RUN) -> None:
    """Delete superfluous checkpoints. Each loses its manifest first, so none is half there.

    Those of other runs stay. `newest` is the step of the checkpoint just written. Newer
    directories are checkpoints that resume rejected as corrupt: ignored here, deleted once training
    is past their step.
    """
    found = {
        step: _examined(checkpoint_path(checkpoints, step))
        for step in steps_on_disk(checkpoints)
        if step <= newest and not is_strange(checkpoint_path(checkpoints, step), lineage)
    }
    for step in superfluous(found, rule):
        directory = checkpoint_path(checkpoints, step)
        (directory / MANIFEST).unlink(missing_ok=True)
        sync_directory(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _examined(directory: Path) -> OnDisk:
    return OnDisk(
        # Sizes suffice: the newest was written just now, and checksums cost a full read.
        whole=fault_of(directory, checksums=False) is None,
        bytes=sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()),
    )


def keep_best(config: Config, policy: WorkerGroup[Exportable], step: int) -> None:
    """Export the policy as the best one, then delete earlier ones. The user's files stay."""
    directory = config.files.best
    newest = checkpoint_path(directory, step)
    policy.call_ranks(Exportable.export, head_file_store.place(config, newest)).result()
    for older in directory.iterdir():
        if older != newest and OURS.fullmatch(older.name):
            shutil.rmtree(older, ignore_errors=True)
