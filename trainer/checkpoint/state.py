"""A model's training state on disk, by names of parameters: in no layout's form.

One rank writes `ROLE.pt`; of several each writes its share to `ROLE-I-of-N.pt`: whole tensors, or
with ZeRO the pieces of tensors that it holds. What is read is all of them together, so any number
of ranks and any sharding goes on from any other's.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from contract.files.os_errors import with_path
from contract.manifest import WrittenFile
from trainer.algorithms import batching
from trainer.checkpoint.tensor_parts import JoinedTensor
from trainer.models import lora
from trainer.types import (
    AdapterMismatchError,
    MissingModelError,
    ModelMismatchError,
    Rank,
    UnknownShardError,
)

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Tensors that Adam keeps for each parameter."""


def moments_of(adam: Iterable[Mapping[str, Any]]) -> list[Tensor]:
    """Return the moments of what Adam keeps for each of several parameters."""
    return [held[key] for held in adam for key in MOMENTS if key in held]


Piece = tuple[int, tuple[int, ...]]
"""Where a piece begins in the flat tensor, and the shape of the whole tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that the next update depends on: of all ranks, or one rank's share.

    The tensors of all ranks may be joined or remote: `tensor_parts` reads their values.
    """

    model: dict[str, Tensor]
    """In the precision in which it is updated."""
    adam: dict[str, dict[str, Any]]
    """Of each trained parameter: `step`, `exp_avg`, `exp_avg_sq`; empty before the first update."""
    scheduler: dict[str, Any]
    average: dict[str, Tensor] = field(default_factory=dict)
    """The moving average, where there is one."""
    pieces: dict[str, Piece] = field(default_factory=dict)
    """Of a rank's share: the names of which `model` and `adam` have a piece, [its elements]."""

    def check_fits(self, model: Mapping[str, Tensor]) -> None:
        """Raises ModelMismatchError if names or shapes of parameters differ.

        It is an AdapterMismatchError if the flags of LoRA are the reason.
        """
        # ZeRO-3 empties tensors
        shapes = {name: getattr(tensor, "ds_shape", tensor.shape) for name, tensor in model.items()}
        if why := lora.difference({name: t.shape for name, t in self.model.items()}, shapes):
            raise AdapterMismatchError(why)
        if unknown := sorted(self.model.keys() ^ model.keys()):
            where = "the checkpoint" if unknown[0] in self.model else "the model"
            raise ModelMismatchError(f"only {where} has {unknown[0]}")
        for name, tensor in self.model.items():
            if tensor.shape != (shape := shapes[name]):
                both = f"{list(tensor.shape)} in the checkpoint, {list(shape)} in the model"
                raise ModelMismatchError(f"{name} is {both}")


def share(tensors: Mapping[str, Tensor], rank: Rank) -> list[str]:
    """The names that `rank` writes of tensors that every rank has: nearly as many bytes each."""
    if rank.world == 1:
        return list(tensors)
    names = list(tensors)
    sizes = np.array([tensors[name].numel() for name in names])
    return [names[i] for i in batching.balanced(sizes, rank.world)[rank.index]]


def save(directory: Path, role: str, state: State, rank: Rank) -> WrittenFile:
    """Write the state durably. Raises OSError if the disk does not take it."""
    several = f"-{rank.index}-of-{rank.world}" if rank.world > 1 else ""
    name = f"{role}{several}.pt"
    content = {part: getattr(state, part) for part in State.__slots__}
    if not state.pieces:
        del content["pieces"]  # versions without pieces read it, too
    with with_path(directory / name), (directory / name).open("wb") as file:
        digest = _Digest(file)
        torch.save(content, cast(BinaryIO, digest))  # it asks for no more
        file.flush()
        os.fsync(file.fileno())
    return WrittenFile(name, digest.bytes, digest.sha256.hexdigest())


class _Digest:
    """A file that is only ever appended to, with its size and checksum so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: memoryview) -> int:
        self.sha256.update(data)
        written = self._file.write(data)
        self.bytes += written
        return written

    def flush(self) -> None:
        self._file.flush()


def is_of(role: str, name: str) -> bool:
    """Whether `load` reads a file of this name for `role`."""
    return name == f"{role}.pt" or fnmatchcase(name, f"{role}-*-of-*.pt")


def load(directory: Path, role: str) -> State:
    """What all ranks saved, on the CPU and read as it is used; executes nothing that is in it.

    Raises MissingModelError if there is none, UnknownShardError if this version cannot read it.
    """
    parts = [
        of_content(read(path, "cpu", mmap=True), path)
        for path in sorted(path for path in directory.iterdir() if is_of(role, path.name))
    ]
    return merged(parts, role)


def read(path: Path, device: str, *, mmap: bool = False) -> dict[str, Any]:
    """Return the content of a file that `save` wrote. Raises UnknownShardError, and OSError."""
    try:
        content: dict[str, Any] = torch.load(
            path, map_location=device, weights_only=True, mmap=mmap
        )
    except (UnpicklingError, EOFError, KeyError, AttributeError) as error:
        # torch advises to read it without weights_only, and then tells the reason
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].partition(". ")[0]
        raise UnknownShardError(f"{path} cannot be read: {reason or repr(error)}") from None
    return content


def of_content(content: Mapping[str, Any], path: Path) -> State:
    """Return the state that `save` wrote to the file `path`, perhaps in another version.

    Raises UnknownShardError if this version would leave out a part of it, or lacks one.
    """
    if unknown := sorted(content.keys() - State.__slots__):
        raise UnknownShardError(f"{path} has the part {unknown[0]!r}, which is unknown here")
    try:
        return State(**content)
    except TypeError as error:
        raise UnknownShardError(f"{path} is incomplete: {error}") from None


def merged(parts: Sequence[State], role: str) -> State:
    """The shares of all ranks as one; tensors that they have pieces of are joined.

    Raises MissingModelError if there is none, UnknownShardError if a piece is missing.
    """
    if not parts:
        raise MissingModelError(role)
    model, adam = _having(parts, "model"), _having(parts, "adam")
    return State(
        model={name: _whole(name, [(p, p.model[name]) for p in model[name]]) for name in model},
        adam={
            name: held[-1].adam[name]
            | {
                key: _whole(name, [(part, part.adam[name][key]) for part in held])
                for key in MOMENTS
                if key in held[-1].adam[name]
            }
            for name, held in adam.items()
        },
        average={name: tensor for part in parts for name, tensor in part.average.items()},
        scheduler=parts[0].scheduler,
    )


def _having(parts: Sequence[State], field_name: str) -> dict[str, list[State]]:
    """Return each name in that field → the shares that have it."""
    found: dict[str, list[State]] = defaultdict(list)
    for part in parts:
        for name in getattr(part, field_name):
            found[name].append(part)
    return found


def _whole(name: str, held: Sequence[tuple[State, Tensor]]) -> Tensor:
    """Return the tensor of which each of these shares has a piece, or all."""
    last, tensor = held[-1]
    if name not in last.pieces:
        return tensor
    shape = last.pieces[name][1]
    try:
        return JoinedTensor.of(shape, [(part.pieces[name][0], piece) for part, piece in held])
    except (ValueError, KeyError) as error:
        raise UnknownShardError(f"the shards do not have all of {name}: {error}") from None
