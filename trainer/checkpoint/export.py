"""The policy as a Hugging Face model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from trainer.contract import sync_directory


def write(model: Any, tokenizer: Any, directory: Path) -> None:
    """Replace `directory` by model and tokeniser; a crash leaves the old one or the new one."""
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    for path in temporary.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o644)  # safetensors leaves its files to their owner alone
    shutil.rmtree(directory, ignore_errors=True)
    temporary.rename(directory)
    sync_directory(directory.parent)
