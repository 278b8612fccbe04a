"""Finds the complete checkpoints of transformers' Trainer: OUTPUT/checkpoint-N.

The Trainer has no marker of a complete checkpoint. Rank 0 writes `trainer_state.json` last of its
own files, while other ranks may still write theirs. So each file is checked for its end.
"""

from __future__ import annotations

import json
import re
import zipfile
from contextlib import suppress
from pathlib import Path

from entrypoint.job.found_checkpoints import FoundCheckpoint, named

NAME = re.compile(r"checkpoint-(?P<step>[0-9]{1,15})")
INCOMPLETE = "checkpoint-is-incomplete.txt"
"""The Trainer's own sign of a checkpoint that a signal made, while it is written."""
LONGEST_HEADER = 100 * 2**20
"""Bytes; safetensors refuses longer headers, too."""
ZERO_RANK = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt")


def newest(output: Path) -> FoundCheckpoint | None:
    """Return the complete checkpoint with the highest step; None if none is found."""
    return next((one for one in named(output, NAME) if is_complete(one)), None)


def is_complete(checkpoint: FoundCheckpoint) -> bool:
    path = checkpoint.path
    try:
        state = json.loads((path / "trainer_state.json").read_bytes())
        if state["global_step"] != checkpoint.step or (path / INCOMPLETE).exists():
            return False
        files = [file for file in path.rglob("*") if file.is_file()]
        has_weights = any(_holds_weights(file) for file in files)
        return has_weights and _shards_are_there(path) and all(map(_is_whole, files))
    except (OSError, ValueError, LookupError, TypeError):
        return False


def zero_ranks(checkpoint: Path) -> int:
    """Return how many ranks of DeepSpeed's ZeRO wrote the checkpoint; 0 if none did."""
    with suppress(OSError):
        matches = (ZERO_RANK.fullmatch(file.name) for file in checkpoint.glob("global_step*/*"))
        return len({match[1] for match in matches if match})
    return 0


def _holds_weights(file: Path) -> bool:
    """Return whether the file is of weights: safetensors, torch's, DeepSpeed's or FSDP's."""
    name = file.name
    return (
        name.endswith((".safetensors", "_model_states.pt", ".distcp"))
        or name.startswith("pytorch_model")
        or name == "adapter_model.bin"
    )


def _shards_are_there(path: Path) -> bool:
    """Return whether all files that an index of weights names are there, and DeepSpeed's last."""
    for index in path.glob("*.index.json"):
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        if not all((path / name).is_file() for name in names):
            return False
    for directory in path.iterdir():
        if any(directory.glob("*.distcp")) and not (directory / ".metadata").is_file():
            return False  # torch.distributed.checkpoint writes it last
    tags = [directory.name for directory in path.glob("global_step*")]
    return not tags or (path / "latest").read_text().strip() in tags


def _is_whole(file: Path) -> bool:
    """Return whether the file has its end: a crash leaves files that are cut off."""
    if file.suffix == ".safetensors":
        return _is_whole_safetensors(file)
    if file.suffix in (".pt", ".pth") or file.name.startswith("pytorch_model"):
        return file.suffix == ".json" or zipfile.is_zipfile(file)
    return True


def _is_whole_safetensors(file: Path) -> bool:
    with file.open("rb") as opened:
        begin = opened.read(8)
        length = int.from_bytes(begin, "little")
        if len(begin) < 8 or length > LONGEST_HEADER:
            return False
        header = json.loads(opened.read(length))
    ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
    return file.stat().st_size == 8 + length + max(ends, default=0)
