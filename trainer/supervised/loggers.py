"""Where a stage's metrics go: the variables that transformers' callbacks read."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from trainer.config.values import FALSE, TRUE
from trainer.supervised.options import StageFlags


def wandb_wanted(flags: StageFlags, environ: Mapping[str, str]) -> bool:
    """Return whether metrics go to W&B: a flag says so, or the environment has a key."""
    text = flags.use_wandb.lower()
    return text not in FALSE if text else bool(environ.get("WANDB_API_KEY"))


def reports(flags: StageFlags, environ: Mapping[str, str]) -> list[str]:
    """Return the names of transformers' reporters."""
    wandb = ["wandb"] if wandb_wanted(flags, environ) else []
    return wandb + (["tensorboard"] if flags.use_tensorboard else [])


def variables(flags: StageFlags, run_id: str | None) -> dict[str, str]:
    """Return the variables that W&B and TensorBoard read.

    `run_id`: the W&B run that goes on; None: each attempt is a run of its own.
    """
    given = {
        "WANDB_PROJECT": flags.wandb_project,
        "WANDB_RUN_GROUP": flags.wandb_group,
        "WANDB_ENTITY": flags.wandb_org,
        "WANDB_API_KEY": flags.use_wandb if flags.use_wandb.lower() not in TRUE + FALSE else None,
        "WANDB_RUN_ID": run_id,
        "WANDB_RESUME": "allow" if run_id else None,
        "WANDB_DIR": str(flags.run_dir) if flags.run_dir else None,
        "TENSORBOARD_LOGGING_DIR": str(flags.use_tensorboard) if flags.use_tensorboard else None,
    }
    return {name: value for name, value in given.items() if value}


def run_id(run_dir: Path) -> str:
    """Return the id of a run's W&B run, which the run directory keeps from the first attempt."""
    file = run_dir / ".wandb-run"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex)
    return file.read_text()
