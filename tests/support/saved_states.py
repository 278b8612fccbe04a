"""What a run's checkpoints hold, number by number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from contract.manifest import (
    checkpoint_path,
    fault_of,
)
from trainer.config.config import Config


def leaves_of(config: Config, step: int) -> dict[str, bytes]:
    """Every number of a checkpoint: weights, moments, counters, learning rates."""
    directory = checkpoint_path(config.checkpoints, step)
    assert fault_of(directory) is None
    return {
        name: content
        for file in sorted(directory.glob("*.pt"))
        for name, content in leaves(torch.load(file, weights_only=True), file.stem)
    }


def weights_of(config: Config, step: int) -> dict[str, torch.Tensor]:
    """The policy's."""
    path = checkpoint_path(config.checkpoints, step) / "policy.pt"
    model: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return model


def leaves(content: Any, at: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(content, torch.Tensor):
        yield at, content.numpy().tobytes()
    elif isinstance(content, dict | list | tuple):
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        for name, part in pairs:
            yield from leaves(part, f"{at}/{name}")
    else:
        yield at, repr(content).encode()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
