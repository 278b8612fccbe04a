"""A checkpoint: every rank's data, then the run's state, then the manifest that confirms it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contract import stored_json
from contract.manifest import Written, checkpoint_path, write_manifest
from contract.run_dir import write_atomically
from trainer.algorithms.reward_shaping import RunningMoments
from trainer.checkpoint import retention
from trainer.checkpoint.retention import Retention
from trainer.rollout.rollout_state import FILE

RUN_STATE = "run.json"
EXPORTED = "hf"
"""The Hugging Face model in a checkpoint, where one is wanted."""


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
    evaluated: int | None = None
    """The step of the newest evaluation."""
    best: float | None = None
    """The best evaluation so far, by --best_metric_key."""
    kl_coef: float | None = None
    """Weight of the KL in the next step, where a target steers it; None: the flag's."""
    reward_moments: RunningMoments = field(default_factory=RunningMoments)
    wandb_id: str | None = None

    @classmethod
    def read(cls, directory: Path) -> RunState:
        return cls.parse((directory / RUN_STATE).read_text())

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> RunState:
        """Raises ValueError for a text of another shape."""
        try:
            row = stored_json.parsed(text.encode())
            state = cls(**row | {"reward_moments": RunningMoments(**row["reward_moments"])})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is no state of a run: {error!r}") from None
        if not stored_json.is_count(state.step) or not isinstance(state.prompts, dict):
            raise ValueError("it is no state of a run: its step or its prompts are missing")
        return state


@dataclass(frozen=True, slots=True)
class DriverState:
    """All that a run goes on from, but for its models."""

    run: RunState
    in_flight: bytes | None = None
    """Rollouts that are under way, if any may be; see `trainer.rollout.rollout_state`."""


def begin(checkpoints: Path, step: int) -> Path:
    """An empty directory for the checkpoint of `step`. Raises OSError."""
    directory = checkpoint_path(checkpoints, step)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def commit(
    directory: Path, driver: DriverState, shares: Iterable[Written], keep: Retention
) -> None:
    """Confirm what lies in `directory` beside the run's state, then delete old ones as `keep` says.

    Until its manifest is there it does not exist, and no other was touched. Raises OSError.
    """
    if driver.in_flight is not None:
        with (directory / FILE).open("wb") as file:
            file.write(driver.in_flight)
            file.flush()
            os.fsync(file.fileno())
    write_atomically(directory / RUN_STATE, driver.run.dump())
    sync_tree(directory)
    write_manifest(directory, driver.run.step, shares)
    retention.apply(directory.parent, keep, newest=driver.run.step)


def sync_tree(directory: Path) -> None:
    """Make the names of all files below `directory`, and its own, survive a power cut."""
    for path in (directory.parent, directory, *directory.rglob("*/")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
