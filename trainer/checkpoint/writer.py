"""A checkpoint on disk: each rank's shard, then the run's state, then the manifest."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contract.files import stored_json, umask
from contract.files.os_errors import with_path
from contract.manifest import WrittenFile, checkpoint_path, is_deleted, write_manifest
from contract.run_dir import sync_directory, write_atomically
from trainer.algorithms.reward_shaping import RunningMoments

RUN_STATE = "run.json"
IN_FLIGHT = "in_flight.npz"
"""Pending rollouts in a checkpoint, if there are any."""
EXPORTED = "hf"
"""Directory of the Hugging Face model in a checkpoint, if one is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run besides its models: what the next step depends on, and what is shown.

    It has no random state: every seed is derived from (seed, step).
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
    eval_is_reward: bool = False
    """An evaluation has found a reward that is neither 0 nor 1."""
    evaluated: int | None = None
    """The step of the newest evaluation."""
    best: float | None = None
    """The best evaluation after a step so far, by --best_metric_key."""
    best_before: float | None = None
    """The evaluation before the first step, by --best_metric_key."""
    best_of: str | None = None
    """Metric and held-out data of `best`; None: there is none, or an older version wrote it."""
    kl_coef: float | None = None
    """Weight of the KL in the next step if a target adapts it; None: the flag's value."""
    reward_moments: RunningMoments = field(default_factory=RunningMoments)
    lora_alpha: int | None = None
    """Scale of the adapters, which no tensor has; None: no adapters, or of an older version."""
    wandb_id: str | None = None

    @property
    def eval_after(self) -> float | None:
        """The newest evaluation after a step; None if there is none but that before the first."""
        return None if self.evaluated == 0 else self.eval

    @classmethod
    def read(cls, directory: Path) -> RunState:
        return cls.parse((directory / RUN_STATE).read_text())

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> RunState:
        """Return the state that `dump` wrote, perhaps in another version of this program.

        An unknown field is left out. Raises ValueError if the text is no such state.
        """
        try:
            row = stored_json.fields_of(cls, stored_json.parsed(text.encode()))
            moments = stored_json.fields_of(RunningMoments, row.get("reward_moments", {}))
            state = cls(**row | {"reward_moments": RunningMoments(**moments)})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is not a state of a run: {error!r}") from None
        if not stored_json.is_count(state.step) or not isinstance(state.prompts, dict):
            raise ValueError("it is not a state of a run: its step or its prompts are missing")
        return state


@dataclass(frozen=True, slots=True)
class DriverState:
    """Everything that a run resumes from, except its models."""

    run: RunState
    in_flight: bytes | None = None
    """Pending rollouts, as `PendingRollouts.dump` returns them; None: there are none."""


def begin(checkpoints: Path, step: int) -> Path:
    """Return an empty directory for the checkpoint of `step`.

    NFS keeps a deleted file there until the last process has closed it. Raises OSError if any other
    file of an earlier checkpoint of the step cannot be deleted.
    """
    umask.restore()
    directory = checkpoint_path(checkpoints, step)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.rglob("*"):
        if left.is_file() and not is_deleted(left):
            why = f"it cannot be deleted, and the checkpoint of step {step} takes its place"
            raise OSError(errno.ENOTEMPTY, why, str(left))
    return directory


def commit(
    directory: Path, driver: DriverState, shards: Iterable[WrittenFile], run: str | None = None
) -> None:
    """Write the run's state and the manifest, which complete a checkpoint. Raises OSError.

    `run`: the run's id. Without a manifest a checkpoint does not exist.
    """
    umask.restore()
    if driver.in_flight is not None:
        path = directory / IN_FLIGHT
        with with_path(path), path.open("wb") as file:
            file.write(driver.in_flight)
            file.flush()
            os.fsync(file.fileno())
    write_atomically(directory / RUN_STATE, driver.run.dump())
    sync_tree(directory)
    write_manifest(directory, driver.run.step, shards, run)


def sync_tree(directory: Path) -> None:
    """Sync the directories, so that the names of all files survive a power cut."""
    for path in (directory.parent, directory, *directory.rglob("*/")):
        sync_directory(path)
