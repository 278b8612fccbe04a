"""Flags: metrics, samples, trackers and the hub."""

# ruff: noqa: RUF009 - `Group.flag` makes a dataclass field
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.config.schema import Group


@dataclass(frozen=True, kw_only=True)
class LoggerFlags:
    logging_steps: int = Group.LOGGER.flag(
        1, "steps between metric rows", dotted="logger.logging_steps", unit="steps", at_least=1
    )
    log_samples: int = Group.LOGGER.flag(
        4, "samples in RUN/samples.jsonl, for each step with a metric row", at_least=0, at_most=32
    )
    use_wandb: str = Group.LOGGER.flag(
        "",
        "log to W&B, with this key or WANDB_API_KEY; the variable also turns it on",
        dotted="logger.wandb.key",
        bare="yes",
        secret=True,
    )
    wandb_project: str = Group.LOGGER.flag("rollcall", "W&B project", dotted="logger.wandb.project")
    wandb_run_name: str | None = Group.LOGGER.flag(
        None, "W&B run name", dotted="logger.wandb.run_name"
    )
    wandb_group: str | None = Group.LOGGER.flag(None, "W&B group", dotted="logger.wandb.group")
    wandb_org: str | None = Group.LOGGER.flag(None, "W&B entity", dotted="logger.wandb.org")
    use_tensorboard: Path | None = Group.LOGGER.flag(
        None, "directory for TensorBoard's event files", dotted="logger.tensorboard_dir"
    )
    log_with: tuple[str, ...] = Group.LOGGER.flag(
        (),
        "further trackers, several with spaces; each reads the variables of its own package",
        choices=("mlflow", "swanlab", "trackio"),
    )
    log_project: str = Group.LOGGER.flag(
        "rollcall", "project or experiment in the trackers of --log_with"
    )
    hub_model_id: str = Group.LOGGER.flag(
        "",
        "repository of the hub, OWNER/NAME, for the model and a model card of a finished run; "
        "the token is HF_TOKEN",
    )
    hub_private_repo: bool = Group.LOGGER.flag(
        False, "a repository that --hub_model_id creates is private"
    )
