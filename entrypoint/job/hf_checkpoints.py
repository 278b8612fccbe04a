"""Finds the complete checkpoints of transformers' Trainer: OUTPUT/checkpoint-N.

The Trainer has no marker of a complete checkpoint. Rank 0 writes `trainer_state.json` last of its
own files, while other ranks may still write theirs. So each file is checked for its end.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from entrypoint.job.found_checkpoints import FoundCheckpoint, named

NAME = re.compile(r"checkpoint-(?P<step>[0-9]{1,15})")
INCOMPLETE = "checkpoint-is-incomplete.txt"
"""The Trainer's own sign of a checkpoint that a signal made, while it is written."""
LONGEST_HEADER = 100 * 2**20
"""Bytes; safetensors refuses longer headers, too."""
ZERO_RANK = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt")
ZERO_MODEL = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_\d+_model_states\.pt")
"""Only ZeRO's stage 3 has one for each rank."""
WORLD_SIZE = re.compile(
    rb"(?:X\r\0\0\0|\x8c\r)dp_world_size(?:q.|r.{4}|\x94)?(?:K(.)|M(..)|J(.{4}))", re.DOTALL
)
"""A text and an integer in a pickle, which is searched and not loaded: it could run code."""


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
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile):
        return False


def zero_ranks(checkpoint: Path) -> int:
    """Return how many ranks of DeepSpeed's ZeRO wrote the checkpoint; 0 if none did."""
    with suppress(OSError):
        return len(_ranks(ZERO_RANK, checkpoint.glob("global_step*/*")))
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
    tags = [*path.glob("global_step*")]
    if not all(map(_has_all_ranks, tags)):
        return False
    return not tags or (path / "latest").read_text().strip() in [tag.name for tag in tags]


def _has_all_ranks(tag: Path) -> bool:
    """Return whether each rank of DeepSpeed's ZeRO has written its files."""
    files = list(tag.iterdir())
    found = [ranks for names in (ZERO_RANK, ZERO_MODEL) if (ranks := _ranks(names, files))]
    if not found:
        return True
    expected = max(_saved_by(files), max(max(ranks) for ranks in found) + 1)
    return all(len(ranks) == expected for ranks in found)


def _ranks(names: re.Pattern[str], files: Iterable[Path]) -> set[int]:
    return {int(match[1]) for file in files if (match := names.fullmatch(file.name))}


def _saved_by(files: Iterable[Path]) -> int:
    """Return the number of ranks that DeepSpeed recorded; 0 if no file tells it."""
    model = next((file for file in files if file.name.endswith("_model_states.pt")), None)
    if model is None:
        return 0
    with zipfile.ZipFile(model) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
        found = WORLD_SIZE.search(archive.read(pickles[0]))
    return int.from_bytes(found[found.lastindex or 0], "little") if found else 0


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
