"""A checkpoint: every role's data, then the run's state, then the manifest that confirms it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.actors.base import Learner, Policy
from trainer.checkpoint import retention
from trainer.checkpoint.retention import Retention
from trainer.contract import checkpoint_path, write_atomically, write_manifest
from trainer.in_flight import FILE, InFlight
from trainer.shaping import RunningMoments
from trainer.team import Team

RUN_STATE = "run.json"
EXPORTED = "hf"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a run is besides its models: all that the next step depends on, and what is shown.

    There is no random state to keep: every seed is derived from (seed, step).
    """

    step: int
    seed: int
    prompts: dict[str, Any]
    """The prompt stream's cursor."""
    samples: int = 0
    reward: float = 0.0
    reward_first: float | None = None
    eval_before: float | None = None
    eval: float | None = None
    best: float | None = None
    """The best evaluation so far, by --best_metric_key."""
    kl_coef: float | None = None
    """Weight of the KL in the next step; None: the first one's."""
    reward_moments: RunningMoments = field(default_factory=RunningMoments)
    wandb_id: str | None = None

    @classmethod
    def read(cls, directory: Path) -> RunState:
        row = json.loads((directory / RUN_STATE).read_text())
        return cls(**row | {"reward_moments": RunningMoments(**row["reward_moments"])})


def write(
    checkpoints: Path,
    state: RunState,
    team: Team,
    *,
    keep: Retention,
    export: bool,
    in_flight: InFlight | None = None,
) -> None:
    """Write the checkpoint of `state.step`, then delete old ones as `keep` says.

    Until its manifest is there it does not exist, and no other was touched. Raises OSError.
    """
    directory = checkpoint_path(checkpoints, state.step)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    pending = [group.together(Learner.save, directory) for group in team.learners]
    if export:
        pending.append(team.policy.together(Policy.export, directory / EXPORTED))
    for part in pending:
        part.result()
    if in_flight:
        (directory / FILE).write_bytes(in_flight.dump())
    write_atomically(directory / RUN_STATE, json.dumps(asdict(state)))
    sync_tree(directory)
    write_manifest(directory, state.step)
    retention.apply(checkpoints, keep)


def sync_tree(directory: Path) -> None:
    """Make the names of all files below `directory`, and its own, survive a power cut."""
    for path in (directory.parent, directory, *directory.rglob("*/")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
