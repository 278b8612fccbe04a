"""Where Hugging Face's cache of this machine has a model."""

from __future__ import annotations

import os
from pathlib import Path


def cached(model: str) -> Path:
    """Return the directory that the model has, or would have, in Hugging Face's cache here.

    It follows the cache's documented folders, because huggingface_hub's import is slow.
    """
    home = Path(os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser())
    folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    repository = folder / f"models--{model.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except (OSError, ValueError):
        revision = "main"
    return repository / "snapshots" / revision
