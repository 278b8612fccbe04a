"""Finds verl's complete checkpoints: DIRECTORY/global_step_N.

verl writes actor, critic, `data.pt`, and at last the step in `latest_checkpointed_iteration.txt`
beside the checkpoints. So no step above that one is complete.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

from entrypoint.job import checkpoint_files
from entrypoint.job.found_checkpoints import FoundCheckpoint, named

NAME = re.compile(r"global_step_(?P<step>[0-9]{1,15})")
SHARD = re.compile(r"(?P<kind>\w+?)_world_size_(?P<world>\d+)_rank_(?P<rank>\d+)\.pt")
"""A file of a rank, of the FSDP engine."""

PARTS, LISTED = ("model", "optimizer", "extra"), "ckpt_contents.json"
"""Directories of the Megatron engine, and the list of them, which it writes last."""


def newest(directory: Path) -> FoundCheckpoint | None:
    """Return the complete checkpoint with the highest step; None if none is found."""
    return newest_of(directory, _is_complete)


def newest_of(directory: Path, is_complete: Callable[[Path], bool]) -> FoundCheckpoint | None:
    """Return the checkpoint with the highest step that verl names as written, and that is whole."""
    try:
        last = int((directory / "latest_checkpointed_iteration.txt").read_text())
    except (OSError, ValueError):
        return None
    found = (one for one in named(directory, NAME) if one.step <= last)
    return next((one for one in found if _or_not(is_complete, one.path)), None)


def _or_not(is_complete: Callable[[Path], bool], path: Path) -> bool:
    try:
        return is_complete(path)
    except OSError:
        return False


def world_size(checkpoint: Path) -> int | None:
    """Return how many ranks of FSDP wrote the actor; None if another engine did."""
    return ranks_of(checkpoint / "actor")


def ranks_of(role: Path) -> int | None:
    """Return how many ranks of FSDP wrote a model; None if another engine did."""
    worlds = {match["world"] for match in _shards(role)}
    return int(worlds.pop()) if len(worlds) == 1 else None


def model_of(checkpoint: FoundCheckpoint) -> Path | None:
    """Return the actor as a Hugging Face model; None if verl was not asked to write its weights.

    verl always writes the settings and the tokenizer there.
    """
    path = checkpoint.path / "actor" / "huggingface"
    return path if checkpoint_files.is_model(path) else None


def _is_complete(path: Path) -> bool:
    roles = [role for role in (path / "actor", path / "critic") if role.is_dir()]
    return (
        path / "actor" in roles
        and zipfile.is_zipfile(path / "data.pt")
        and all(has_all_shards(role) for role in roles)
    )


def has_all_shards(role: Path) -> bool:
    """Return whether each kind of file is there from each rank, and none is cut off."""
    ranks: dict[tuple[str, int], set[int]] = {}
    for match in _shards(role):
        if not zipfile.is_zipfile(role / match.string):
            return False
        ranks.setdefault((match["kind"], int(match["world"])), set()).add(int(match["rank"]))
    if not ranks:  # Megatron's, in directories of its own
        is_listed = any((role / part).is_dir() for part in PARTS)
        return (role / LISTED).is_file() if is_listed else any(role.rglob("*"))
    return all(found == set(range(world)) for (_, world), found in ranks.items())


def _shards(role: Path) -> list[re.Match[str]]:
    return [match for file in role.glob("*.pt") if (match := SHARD.fullmatch(file.name))]
