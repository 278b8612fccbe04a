"""Which weights the models have that a job names: a run that goes on refuses others.

The trained models go on with the newest step's weights. The reference of the KL, frozen weights
behind adapters and reward models are read again from their directories at each start.

A head compares them before each attempt, for every recipe that names models. The trainer compares
them too, as it may run without a head, and again once it has fetched models of the hub.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contract.files import stored_json
from contract.files.hf_cache import cached
from contract.files.os_errors import with_path
from contract.run_dir import RunFiles, write_atomically

WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
BLOCKS, BLOCK_BYTES = 64, 16 << 10
"""What is read of a file: a megabyte, spread over it. A fine-tuning changes all weights."""
KEY = "models"
"""Of run.json, where earlier versions have them."""

Row = dict[str, int | str]
State = tuple[tuple[str, int, int], ...]


class OtherModelError(Exception):
    """Models have other weights than the run was begun with; a sentence names them."""


@dataclass(slots=True)
class ModelDigests:
    """Reads weights again only if a file of theirs has changed its size or time."""

    files: RunFiles
    _seen: dict[Path, tuple[State, Row]] = field(default_factory=dict)

    def compare(self, models: Mapping[str, str], *, begun: bool) -> None:
        """Compare the named models with those that the run has begun with; keep them first.

        `models`: flag → directory, or name on the hub. `begun`: the run has finished a step.
        Raises OtherModelError if weights differ, OSError.
        """
        if not self.files.root.is_dir():
            return  # it was deleted under a living head
        kept = self._kept()
        before = kept if begun else {}
        now = {flag: found for flag, name in models.items() if (found := self._of(name))}
        others = [flag for flag, found in now.items() if before.get(flag, found) != found]
        if others:
            raise OtherModelError("; ".join(_refusal(flag, models[flag]) for flag in others))
        known = {**now, **before}
        if known != kept:
            write_atomically(self.files.models, json.dumps(known, indent=1) + "\n")

    def _kept(self) -> dict[str, object]:
        """Return what the run has kept; a damaged file counts as absent."""
        try:
            return stored_json.json_object(self.files.models) or {}
        except FileNotFoundError:
            return self._kept_earlier()

    def _kept_earlier(self) -> dict[str, object]:
        try:
            earlier = (stored_json.json_object(self.files.run) or {}).get(KEY)
        except FileNotFoundError:
            return {}
        return earlier if isinstance(earlier, dict) else {}

    def _of(self, name: str) -> Row | None:
        """Return size and digest of a model's weights; None if they are not on this disk."""
        directory = Path(name) if Path(name).is_dir() else cached(name)
        files = list(_weights(directory))
        state = tuple((file.name, *_size_and_time(file)) for file in files)
        if not files or self._is_own(directory):
            return None
        if directory not in self._seen or self._seen[directory][0] != state:
            self._seen[directory] = state, digest(files)
        return self._seen[directory][1]

    def _is_own(self, directory: Path) -> bool:
        """Return whether the run itself writes the model."""
        run = self.files
        own = (run.exported, run.exported_critic, run.best, run.checkpoints)
        return any(directory.is_relative_to(path) for path in own)


def digest(files: list[Path]) -> Row:
    """Return the size of all files, and a SHA-256 over names, sizes and blocks of each."""
    sampled, total = hashlib.sha256(), 0
    for file in files:
        with with_path(file), file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            total += size
            sampled.update(f"{file.name} {size}\n".encode())
            for offset in offsets(size):
                opened.seek(offset)
                sampled.update(opened.read(BLOCK_BYTES))
    return {"bytes": total, "sha256": sampled.hexdigest()}


def offsets(size: int) -> list[int]:
    """Return where the blocks of a file begin: all of a small one, else first, last and between."""
    if size <= BLOCKS * BLOCK_BYTES:
        return list(range(0, size, BLOCK_BYTES))
    last = size - BLOCK_BYTES
    return [last * block // (BLOCKS - 1) for block in range(BLOCKS)]


def _weights(directory: Path) -> Iterator[Path]:
    found = {path for pattern in WEIGHTS for path in directory.glob(pattern) if path.is_file()}
    yield from sorted(found)


def _size_and_time(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _refusal(flag: str, name: str) -> str:
    return (
        f"{flag} {name} has other weights than the run was begun with: the run would go "
        "on beside another reference, reward or frozen model. Give the model of that run, or "
        "another ROLLCALL_RUN_DIR"
    )
