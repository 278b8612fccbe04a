"""Flags: metrics, samples, trackers and the hub."""

# ruff: noqa: RUF009 - `flag` makes a dataclass field
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.config.schema import LOGGER, flag


@dataclass(frozen=True, kw_only=True)
class LoggerFlags:
    logging_steps: int = flag(
        1,
        group=LOGGER,
        dotted="logger.logging_steps",
        unit="steps",
        at_least=1,
        help="steps between metric rows",
    )
    log_samples: int = flag(
        4,
        group=LOGGER,
        at_least=0,
        at_most=32,
        help="samples in RUN/samples.jsonl, for each step with a metric row",
    )
    use_wandb: str = flag(
        "",
        group=LOGGER,
        dotted="logger.wandb.key",
        bare="yes",
        secret=True,
        help="log to W&B, with this key or WANDB_API_KEY, which alone turns it on, too",
    )
    wandb_project: str = flag(
        "rollcall", group=LOGGER, dotted="logger.wandb.project", help="W&B project"
    )
    wandb_run_name: str | None = flag(
        None, group=LOGGER, dotted="logger.wandb.run_name", help="W&B run name"
    )
    wandb_group: str | None = flag(
        None, group=LOGGER, dotted="logger.wandb.group", help="W&B group"
    )
    wandb_org: str | None = flag(None, group=LOGGER, dotted="logger.wandb.org", help="W&B entity")
    use_tensorboard: Path | None = flag(
        None,
        group=LOGGER,
        dotted="logger.tensorboard_dir",
        help="directory for TensorBoard's event files",
    )
    log_with: tuple[str, ...] = flag(
        (),
        group=LOGGER,
        choices=("mlflow", "swanlab", "trackio"),
        help="further trackers, several with spaces; each reads the variables of its own package",
    )
    log_project: str = flag(
        "rollcall", group=LOGGER, help="project or experiment in the trackers of --log_with"
    )
    hub_model_id: str = flag(
        "",
        group=LOGGER,
        help="repository of the hub, OWNER/NAME, to which a finished run pushes its final model "
        "with a model card; the token is HF_TOKEN",
    )
    hub_private_repo: bool = flag(
        False, group=LOGGER, help="a repository that --hub_model_id creates is private"
    )
