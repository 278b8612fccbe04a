"""Finds the complete checkpoints of transformers' Trainer: OUTPUT/checkpoint-N.

The Trainer has no marker of a complete checkpoint. Rank 0 writes `trainer_state.json` last of its
own files, while other ranks may still write theirs. So each file is checked for its end.
"""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress
from pathlib import Path

from contract.files.deepspeed_names import MODEL_STATES
from entrypoint.job import checkpoint_files
from entrypoint.job.checkpoint_files import UNREADABLE
from entrypoint.job.found_checkpoints import FoundCheckpoint, named
from entrypoint.run.trained import CHECKPOINT

INCOMPLETE = "checkpoint-is-incomplete.txt"
"""The Trainer's own sign of a checkpoint that a signal made, while it is written."""


def newest(output: Path) -> FoundCheckpoint | None:
    """Return the complete checkpoint with the highest step; None if none is found."""
    return next((one for one in named(output, CHECKPOINT) if is_complete(one)), None)


def is_complete(checkpoint: FoundCheckpoint) -> bool:
    path = checkpoint.path
    try:
        state = json.loads((path / "trainer_state.json").read_bytes())
        if state["global_step"] != checkpoint.step or (path / INCOMPLETE).exists():
            return False
        files = [file for file in path.rglob("*") if file.is_file()]
        has_weights = any(_holds_weights(file) for file in files)
        return has_weights and checkpoint_files.has_all_parts(path) and all(map(_is_whole, files))
    except UNREADABLE:
        return False


def zero_ranks(checkpoint: Path) -> int:
    """Return how many ranks of DeepSpeed's ZeRO wrote the checkpoint; 0 if none did."""
    with suppress(OSError):
        files = checkpoint.glob("global_step*/*")
        return len(checkpoint_files.ranks(checkpoint_files.ZERO_RANK, files))
    return 0


def other_world(checkpoint: Path, world: int) -> str:
    """Return why DeepSpeed's ZeRO cannot resume on `world` ranks; "" if it can."""
    saved = zero_ranks(checkpoint)
    if saved in (0, world):
        return ""
    return (
        f"{checkpoint.name} was saved by {saved} ranks of DeepSpeed's ZeRO, which cannot load "
        f"it on {world}: bring the nodes back, or remove the checkpoint to begin again"
    )


def _holds_weights(file: Path) -> bool:
    """Return whether the file is of weights: safetensors, torch's, DeepSpeed's or FSDP's."""
    name = file.name
    return (
        name.endswith((".safetensors", MODEL_STATES, ".distcp"))
        or name.startswith("pytorch_model")
        or name == "adapter_model.bin"
    )


def _is_whole(file: Path) -> bool:
    if file.suffix in (".pt", ".pth") or file.name.startswith("pytorch_model"):
        return file.suffix == ".json" or zipfile.is_zipfile(file)
    return checkpoint_files.is_whole(file)
