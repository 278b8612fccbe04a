"""The progress of a run, its result, and the newest heartbeat of its driver."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from contract import lease
from contract.exit_codes import ExitCode
from contract.files import stored_json, umask
from contract.journal import timestamp
from contract.run_dir import RunFiles, write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run: `RUN/progress.json`, replaced after every step.

    A user's own command may leave out every field but `step`.
    """

    step: int
    """Finished optimizer steps of the whole run, over all attempts."""
    total_steps: int = 0
    """0: unknown."""
    samples: int = 0
    """Completions trained on so far."""
    attempt: int = 0
    reward: float | None = None
    """Mean reward of the step's samples."""
    reward_first: float | None = None
    """Mean reward of the run's first step."""
    kl: float | None = None
    """Mean KL divergence of the policy from the reference, nats a token."""
    loss: float | None = None
    """The newest loss that the job has told. A Trainer of transformers tells it one step late."""
    eval: float | None = None
    """Newest held-out accuracy, 0 to 1; the held-out reward if no accuracy is known."""
    eval_before: float | None = None
    """Held-out accuracy before the first step."""
    eval_step: int | None = None
    """The step after which `eval` was measured, 0 before the first; None: not known."""
    eval_is_reward: bool = False
    """The held-out rewards were not all 0 or 1: `eval` is their mean, and no accuracy."""
    is_logged: bool = False
    """The step is that of a dict of numbers in the job's log. It is shown, and decides nothing."""
    tokens_per_second: float = 0.0
    step_seconds: float = 0.0
    eta_seconds: float = 0.0
    checkpoint: int | None = None
    """Step of the newest complete checkpoint."""
    in_memory: int | None = None
    """Newest step that two nodes are known to have in memory. The next step may be there, too."""
    at: str = field(default_factory=lambda: timestamp())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def eval_after(self) -> float | None:
        """Newest held-out accuracy after a step; None if there is none but that before."""
        return None if self.eval_step == 0 else self.eval

    def write(self, path: Path, claim: lease.Claim | None = None) -> None:
        """`claim`: the writer's; None: that of this process.

        Raises SupersededError if a later head owns the run, and OSError.
        """
        lease.check(claim or lease.mine())
        write_atomically(path, json.dumps(self.as_dict()) + "\n")

    @classmethod
    def read(cls, path: Path) -> Progress | None:
        """Return the progress in `path`; None if there is none yet, or it cannot be parsed.

        A damaged field counts as absent; a damaged `at` is replaced by the file's modification
        time. Raises OSError.
        """
        try:
            row = stored_json.json_object(path)
            written = path.stat().st_mtime
        except FileNotFoundError:
            return None
        return None if row is None else cls.of({"at": timestamp(written)} | _fitting(row))

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Progress | None:
        """Return the progress in a row of another process, perhaps of another version.

        A damaged field counts as absent, an unknown field is left out. None if the row has no step.
        """
        fitting = _fitting(row)
        return cls(**fitting) if "step" in fitting else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run has ended: `RUN/result.json`, which a head or a trainer without a head writes."""

    outcome: str
    """finished, failed or stopped."""
    exit_code: ExitCode
    attempts: int
    progress: Progress | None
    seconds: float
    """How long the run has taken since its last start."""

    def write(self, files: RunFiles) -> None:
        """Replace result.json. Raises OSError."""
        told = self.progress
        row = {
            "outcome": self.outcome,
            "exit_code": int(self.exit_code),
            "attempts": self.attempts,
            "steps": told.step if told else 0,
            "reward_first": told.reward_first if told else None,
            "reward_last": told.reward if told else None,
            "eval_before": told.eval_before if told else None,
            "eval_after": told.eval_after if told else None,
            "eval_is_reward": bool(told and told.eval_is_reward),
            "wall_seconds": round(self.seconds, 1),
        }
        write_atomically(files.result, json.dumps(row, indent=1) + "\n")


def held_out(value: float, *more: float, is_reward: bool = False) -> list[str]:
    """Return what was measured on held-out data, and each value as text.

    It is the accuracy, 0 to 1, or the reward of a function that tells no accuracy. `is_reward`:
    it is known to be a reward; else the values say it.
    """
    values = (value, *more)
    if not is_reward and all(0 <= one <= 1 for one in values):
        return ["accuracy", *(f"{one:.1%}" for one in values)]
    return ["reward", *(f"{one:.3f}" for one in values)]


def change(before: float | None, after: float | None, *, is_reward: bool = False) -> str:
    """Return what was measured on held-out data before and after training; "" if nothing was.

    One measurement is one number: it shows no change.
    """
    known = [value for value in (before, after) if value is not None]
    if not known:
        return ""
    what, *texts = held_out(*known, is_reward=is_reward)
    when = " before the first step" if after is None else ""
    return f"held-out {what} {' → '.join(texts)}{when}"


def _fitting(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of Progress in a row whose values have the field's type."""
    return {
        one.name: row[one.name]
        for one in fields(Progress)
        if one.name in row and _FITS[str(one.type)](row[one.name])
    }


_FITS: Mapping[str, Callable[[object], bool]] = {
    "int": stored_json.is_count,
    "int | None": stored_json.is_count,
    "bool": lambda value: isinstance(value, bool),
    "float": stored_json.is_number,
    "float | None": stored_json.is_number,
    "str": lambda value: isinstance(value, str),
}
"""Type of a field of Progress → whether a value from a file has that type."""


RESTORE = "restore"
"""The part in which other nodes read a checkpoint from the head's run directory."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The driver's newest heartbeat: `RUN/.phase`, overwritten after each part of a step."""

    attempt: int
    step: int
    """The step that the part belongs to; it may be unfinished."""
    done: str
    """The part that ended: generate, reward, forward, update, publish, step, eval, checkpoint.

    `repair` and `restore` are the exceptions: they have begun.
    """
    count: int = 0
    """Grows while the part goes on: each value is a sign of life."""

    @classmethod
    def read(cls, path: Path) -> Phase | None:
        """Return the phase in `path`; None if there is none, or it cannot be parsed now."""
        try:
            row = stored_json.json_object(path) or {}
        except OSError:
            return None
        attempt, step, done = (row.get(name) for name in ("attempt", "step", "done"))
        count = row.get("count", 0)
        if not (stored_json.is_count(attempt) and stored_json.is_count(step)):
            return None
        if isinstance(done, str) and stored_json.is_count(count):
            return cls(attempt, step, done, count)
        return None


PHASE_BYTES = 128


class PhaseFile:
    """Writes a heartbeat in microseconds: one write in place, of fixed length, without a sync.

    Its reader runs on the same machine, so it sees what the kernel has. Nothing that outlives the
    machine depends on the file.
    """

    def __init__(self, path: Path) -> None:
        """The first `write` opens the file."""
        self._path = path
        self._descriptor: int | None = None

    def write(self, phase: Phase) -> None:
        """Raises OSError, and ValueError for a phase that is too long for the file."""
        if self._descriptor is None:
            umask.restore()
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        text = (json.dumps(asdict(phase)).ljust(PHASE_BYTES - 1) + "\n").encode()
        if len(text) > PHASE_BYTES:  # the end of a longer one would stay behind the next
            raise ValueError(f"{phase} has {len(text)} bytes, where {PHASE_BYTES} is the most")
        os.pwrite(self._descriptor, text, 0)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
