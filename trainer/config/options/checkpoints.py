"""Flags: the run directory, its checkpoints, snapshots and repairs."""

# ruff: noqa: RUF009 - `Group.flag` makes a dataclass field
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePath

from trainer.config.schema import Group

MOST_REPAIRS = 3
"""Default of --max_repairs: a cause that strikes more often persists."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFlags:
    run_dir: Path | None = Group.CHECKPOINTS.flag(
        None, "run directory; all nodes share it, but see --storage", required=True
    )
    ckpt_path: PurePath | None = Group.CHECKPOINTS.flag(
        None,
        "checkpoints; a relative path is below RUN; default: RUN/checkpoints",
        dotted="ckpt.path",
    )
    save_path: PurePath | None = Group.CHECKPOINTS.flag(
        None, "final model; a relative path is below RUN; default: RUN/hf", dotted="ckpt.output_dir"
    )
    storage: str = Group.CHECKPOINTS.flag(
        "shared",
        "who has the run directory: all nodes, or only the head, which then receives what "
        "the other nodes save",
        choices=("shared", "head"),
    )
    save_steps: int = Group.CHECKPOINTS.flag(
        -1,
        "steps between checkpoints; -1: only at the end",
        dotted="ckpt.save_steps",
        unit="steps",
        at_least=-1,
    )
    max_ckpt_num: int = Group.CHECKPOINTS.flag(
        3, "complete checkpoints to keep", dotted="ckpt.max_num", at_least=1
    )
    max_ckpt_mem: float = Group.CHECKPOINTS.flag(
        math.inf,
        "limit of all checkpoints: the oldest are deleted, the newest always stays",
        dotted="ckpt.max_mem",
        unit="GB",
        above=0,
        endless=True,
    )
    save_hf_ckpt: bool = Group.CHECKPOINTS.flag(
        False, "write a Hugging Face model in each checkpoint, too", dotted="ckpt.save_hf"
    )
    disable_ds_ckpt: bool = Group.CHECKPOINTS.flag(
        False, "write the models only, and no state to resume from", dotted="ckpt.disable_ds"
    )
    save_value_network: bool = Group.CHECKPOINTS.flag(
        False, "export the critic beside the final model", dotted="critic.save_value_network"
    )
    load_checkpoint: bool = Group.CHECKPOINTS.flag(
        True,
        "resume from the newest complete checkpoint, if there is one; "
        "false: start a new run, in a directory without steps",
        dotted="ckpt.load_enable",
    )
    load_step: int = Group.CHECKPOINTS.flag(
        0,
        "resume from the checkpoint of this step, and put later ones aside; 0: the newest",
        at_least=0,
    )
    peer_snapshot: str = Group.CHECKPOINTS.flag(
        "auto",
        "keep each step's state in the memory of two nodes, too; auto: if it fits",
        choices=("auto", "off"),
    )
    peer_snapshot_memory: float | None = Group.CHECKPOINTS.flag(
        None, "limit of these snapshots on a node; default: half of its memory", unit="GB", above=0
    )
    max_repairs: int = Group.CHECKPOINTS.flag(
        MOST_REPAIRS,
        "restarts of one role without a new step in between; 0: each loss ends the attempt",
        at_least=0,
    )
