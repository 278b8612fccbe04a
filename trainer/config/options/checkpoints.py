"""Flags: the run directory, its checkpoints, snapshots and repairs."""

# ruff: noqa: RUF009 - `flag` makes a dataclass field
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePath

from trainer.config.schema import CHECKPOINTS, flag

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
