"""The policy that was best on the held-out prompts, as a Hugging Face model."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainer.actors.base import Policy
from trainer.actors.group import Group
from trainer.contract import checkpoint_path, sync_directory


def keep(policy: Group[Policy], directory: Path, step: int) -> Path:
    """Export the policy to `directory`, then delete the one that was best before."""
    unfinished, newest = directory / "unfinished", checkpoint_path(directory, step)
    shutil.rmtree(unfinished, ignore_errors=True)
    policy.first(Policy.export, unfinished).result()
    shutil.rmtree(newest, ignore_errors=True)
    unfinished.rename(newest)
    sync_directory(directory)
    for older in directory.iterdir():
        if older != newest:
            shutil.rmtree(older)
    return newest
