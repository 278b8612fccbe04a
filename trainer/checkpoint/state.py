"""One actor's state in one file, durable once `save` has returned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def save(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values to `path`. Raises OSError where the disk does not take it."""
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path) -> dict[str, Any]:
    """What `save` wrote, on the CPU; executes nothing that the file contains."""
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content
