"""Finds the complete checkpoints of verl's supervised trainer: DIRECTORY/global_step_N.

Each rank writes its shards, each data-parallel rank `data_RANK.pt`, and rank 0 at last the step in
`latest_checkpointed_iteration.txt` beside the checkpoints (verl v0.9.1, `CheckpointHandler`).
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from entrypoint.job import checkpoint_files
from entrypoint.job.found_checkpoints import FoundCheckpoint
from entrypoint.job.recipes.verl import checkpoints as of_verl

DATA = re.compile(r"data(?:_(?P<rank>\d+))?\.pt")
"""The place in the data of a data-parallel rank; older releases have one file for all."""


def newest(directory: Path) -> FoundCheckpoint | None:
    """Return the complete checkpoint with the highest step; None if none is found."""
    return of_verl.newest_of(directory, _is_complete)


def world_size(checkpoint: Path) -> int | None:
    """Return how many ranks of FSDP wrote it; None if another engine did."""
    return of_verl.ranks_of(checkpoint)


def model_of(checkpoint: FoundCheckpoint) -> Path | None:
    """Return the model for Hugging Face; None if verl was not asked to write its weights."""
    path = checkpoint.path / "huggingface"
    return path if checkpoint_files.is_model(path) else None


def _is_complete(path: Path) -> bool:
    found = {file: match for file in path.iterdir() if (match := DATA.fullmatch(file.name))}
    ranks = {int(match["rank"] or 0) for match in found.values()}
    world = of_verl.ranks_of(path) or len(ranks)
    has_data = bool(ranks) and ranks == set(range(len(ranks))) and world % len(ranks) == 0
    return has_data and all(map(zipfile.is_zipfile, found)) and of_verl.has_all_shards(path)
