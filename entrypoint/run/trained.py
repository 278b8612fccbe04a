"""What a training has left in its output directory: a model, or checkpoints alone."""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINT = re.compile(r"checkpoint-(?P<step>[0-9]{1,15})")
"""A directory that transformers' Trainer has written."""
SETTINGS = ("config.json", "adapter_config.json")
WEIGHTS = (".safetensors", ".bin")


def has_model(directory: Path) -> bool:
    """Return whether a model or an adapter is there: its settings and weights. Raises OSError."""
    files = [path for path in directory.iterdir() if path.is_file()]
    has_settings = any(path.name in SETTINGS for path in files)
    return has_settings and any(path.suffix in WEIGHTS for path in files)


def newest_checkpoint(directory: Path) -> Path | None:
    """Return the newest checkpoint with a model below it; None if none is. Raises OSError."""
    steps = {
        int(match[1]): path
        for path in directory.iterdir()
        if path.is_dir() and (match := CHECKPOINT.fullmatch(path.name))
    }
    newest_first = (steps[step] for step in sorted(steps, reverse=True))
    return next((path for path in newest_first if has_model(path)), None)
