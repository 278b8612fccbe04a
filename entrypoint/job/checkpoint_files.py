"""Tells from the files of a checkpoint whether it is half written, without loading any of them."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from contract.files import deepspeed_names

UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError),
    *(RecursionError, zipfile.BadZipFile),
)
"""What reading a half-written checkpoint may raise."""
LONGEST_HEADER = 100 * 2**20
"""Bytes; safetensors refuses longer headers, too."""
ZIP = b"PK\3\4"
"""Begin of a zip archive: torch.save's format."""
NEVER_EMPTY = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".distcp")
ZERO_RANK = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt")
ZERO_MODEL = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_\d+_model_states\.pt")
"""Only ZeRO's stage 3 has one for each rank."""
WORLD_SIZE = re.compile(
    rb"(?:X\r\0\0\0|\x8c\r)dp_world_size(?:q.|r.{4}|\x94)?(?:K(.)|M(..)|J(.{4}))", re.DOTALL
)
"""A text and an integer in a pickle, which is searched and not loaded: it could run code."""


def is_whole(file: Path) -> bool:
    """Return whether the file has its end, as far as its format tells. Raises OSError, ValueError.

    A crash leaves files that are cut off.
    """
    if file.suffix == ".safetensors":
        return _is_whole_safetensors(file)
    with file.open("rb") as opened:
        begin = opened.read(len(ZIP))
    if not begin:
        return file.suffix not in NEVER_EMPTY
    return begin != ZIP or zipfile.is_zipfile(file)


def is_model(directory: Path) -> bool:
    """Return whether the directory is a whole Hugging Face model, with its tokenizer."""
    with suppress(*UNREADABLE):
        files = [file for file in directory.iterdir() if file.is_file()]
        names = {file.name for file in files}
        for file in files:
            if file.suffix == ".json":
                json.loads(file.read_bytes())
        weights = any(file.suffix in (".safetensors", ".bin") for file in files)
        has_names = {"config.json", "tokenizer_config.json"} <= names  # of these, written last
        return weights and has_names and all(map(is_whole, files)) and has_all_parts(directory)
    return False


def has_all_parts(directory: Path) -> bool:
    """Return whether all files are there that an index, DeepSpeed or FSDP requires.

    Raises OSError, ValueError, LookupError and BadZipFile for files that cannot be read.
    """
    for index in directory.glob("*.index.json"):
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        if not all((directory / name).is_file() for name in names):
            return False
    for inner in (directory, *(entry for entry in directory.iterdir() if entry.is_dir())):
        if any(inner.glob("*.distcp")) and not (inner / ".metadata").is_file():
            return False  # torch.distributed.checkpoint writes it last
        if not _has_all_ranks(inner):
            return False
    tags = [tag.name for tag in directory.glob(deepspeed_names.STEPS)]
    return not tags or (directory / deepspeed_names.LATEST).read_text().strip() in tags


def ranks(names: re.Pattern[str], files: Iterable[Path]) -> set[int]:
    return {int(match[1]) for file in files if (match := names.fullmatch(file.name))}


def _has_all_ranks(directory: Path) -> bool:
    """Return whether each rank of DeepSpeed's ZeRO has written its files."""
    files = list(directory.iterdir())
    found = [of for names in (ZERO_RANK, ZERO_MODEL) if (of := ranks(names, files))]
    if not found:
        return True
    expected = max(_saved_by(files), max(max(of) for of in found) + 1)
    return all(len(of) == expected for of in found)


def _saved_by(files: Iterable[Path]) -> int:
    """Return the number of ranks that DeepSpeed recorded; 0 if no file tells it."""
    model = next((file for file in files if file.name.endswith(deepspeed_names.MODEL_STATES)), None)
    if model is None:
        return 0
    with zipfile.ZipFile(model) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
        found = WORLD_SIZE.search(archive.read(pickles[0]))
    return int.from_bytes(found[found.lastindex or 0], "little") if found else 0


def _is_whole_safetensors(file: Path) -> bool:
    with file.open("rb") as opened:
        begin = opened.read(8)
        length = int.from_bytes(begin, "little")
        if len(begin) < 8 or length > LONGEST_HEADER:
            return False
        header = json.loads(opened.read(length))
    ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
    return file.stat().st_size == 8 + length + max(ends, default=0)
