"""Flags: checkpoints, evaluation and metrics."""

# ruff: noqa: RUF009 - `flag` makes a dataclass field
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePath

from trainer.config.data_sets import TRAIN, DataSets
from trainer.config.schema import CHECKPOINTS, EVALUATION, LOGGER, flag

MOST_REPAIRS = 3
"""Default of --max_repairs: a cause that strikes more often persists."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFlags:
    run_dir: Path | None = flag(
        None,
        group=CHECKPOINTS,
        required=True,
        help="run directory; all nodes share it, but see --storage",
    )
    ckpt_path: PurePath | None = flag(
        None,
        group=CHECKPOINTS,
        dotted="ckpt.path",
        help="checkpoints; a relative path is below RUN; default: RUN/checkpoints",
    )
    save_path: PurePath | None = flag(
        None,
        group=CHECKPOINTS,
        dotted="ckpt.output_dir",
        help="final model; a relative path is below RUN; default: RUN/hf",
    )
    storage: str = flag(
        "shared",
        group=CHECKPOINTS,
        choices=("shared", "head"),
        help="who has the run directory: all nodes, or the head alone, which then receives what "
        "the other nodes save",
    )
    save_steps: int = flag(
        -1,
        group=CHECKPOINTS,
        dotted="ckpt.save_steps",
        unit="steps",
        at_least=-1,
        help="steps between checkpoints; -1: only at the end",
    )
    max_ckpt_num: int = flag(
        3, group=CHECKPOINTS, dotted="ckpt.max_num", at_least=1, help="complete checkpoints to keep"
    )
    max_ckpt_mem: float = flag(
        math.inf,
        group=CHECKPOINTS,
        dotted="ckpt.max_mem",
        unit="GB",
        above=0,
        endless=True,
        help="limit of all checkpoints: the oldest are deleted, the newest always stays",
    )
    save_hf_ckpt: bool = flag(
        False,
        group=CHECKPOINTS,
        dotted="ckpt.save_hf",
        help="write a Hugging Face model in each checkpoint, too",
    )
    disable_ds_ckpt: bool = flag(
        False,
        group=CHECKPOINTS,
        dotted="ckpt.disable_ds",
        help="write the models only, and no state to resume from",
    )
    save_value_network: bool = flag(
        False,
        group=CHECKPOINTS,
        dotted="critic.save_value_network",
        help="export the critic beside the final model",
    )
    load_checkpoint: bool = flag(
        True,
        group=CHECKPOINTS,
        dotted="ckpt.load_enable",
        help="resume from the newest complete checkpoint, if there is one; "
        "false: start a new run, which a run directory with steps refuses",
    )
    load_step: int = flag(
        0,
        group=CHECKPOINTS,
        at_least=0,
        help="resume from the checkpoint of this step, and put later ones aside; 0: the newest",
    )
    peer_snapshot: str = flag(
        "auto",
        group=CHECKPOINTS,
        choices=("auto", "off"),
        help="keep each step's state in the memory of two nodes, too; auto: if it fits",
    )
    peer_snapshot_memory: float | None = flag(
        None,
        group=CHECKPOINTS,
        unit="GB",
        above=0,
        help="limit of these snapshots on a node; default: half of its memory",
    )
    max_repairs: int = flag(
        MOST_REPAIRS,
        group=CHECKPOINTS,
        at_least=0,
        help="restarts of one role without a new step in between; 0: each loss ends the attempt",
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationFlags:
    eval_dataset: DataSets | None = flag(
        None,
        group=EVALUATION,
        dotted="eval.dataset",
        help="held-out prompts, as --prompt_data names them",
    )
    eval_split: str = flag(
        TRAIN,
        group=EVALUATION,
        dotted="eval.split",
        help="split of held-out data sets that have several",
    )
    eval_steps: int = flag(
        -1,
        group=EVALUATION,
        dotted="eval.steps",
        unit="steps",
        at_least=-1,
        help="steps between evaluations; the first and last state are always evaluated",
    )
    eval_n_samples_per_prompt: int = flag(
        1,
        group=EVALUATION,
        dotted="eval.n_samples_per_prompt",
        at_least=1,
        help="completions of a held-out prompt: the k of pass@k",
    )
    eval_temperature: float = flag(
        0.0,
        group=EVALUATION,
        dotted="eval.temperature",
        at_least=0,
        help="sampling temperature on held-out prompts; 0: greedy decoding",
    )
    best_metric_key: str = flag(
        "",
        group=EVALUATION,
        dotted="ckpt.best_metric_key",
        help="metric of the best checkpoint, which is kept; default: pass@1; none: keep none",
    )


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
