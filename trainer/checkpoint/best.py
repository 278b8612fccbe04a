"""The policy that was best on the held-out prompts, as a Hugging Face model."""

from __future__ import annotations

import shutil
from pathlib import Path

from contract.manifest import checkpoint_path
from trainer.cluster.worker_group import WorkerGroup
from trainer.workers.protocols import Policy


def keep(policy: WorkerGroup[Policy], directory: Path, step: int) -> None:
    """Export the policy to `directory`, then delete the one that was best before."""
    newest = checkpoint_path(directory, step)
    policy.call_ranks(Policy.export, newest).result()
    for older in directory.iterdir():
        if older != newest:
            shutil.rmtree(older)
