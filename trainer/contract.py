"""The border between the entrypoint and a trainer: exit codes, files, progress, events.

Torch-free: the entrypoint imports it at start-up. Everything else that crosses the border is a
command line.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

from trainer import fence, stored
from trainer.journal import line_of
from trainer.journal import read_events as read_events
from trainer.masks import redact, redact_all, secret_texts
from trainer.os_errors import about, named


class ExitCode(IntEnum):
    """What a process of this product ends with; a platform's restart rule can use them."""

    FINISHED = 0
    USAGE = 64
    UNREACHABLE = 69
    JOB_FAILED = 70
    RUN_DIR = 73
    RETRY = 75
    UNFIT = 76
    NOT_ALLOWED = 77
    STOPPED = 143


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Where the files of one run lie, below its run directory."""

    root: Path

    def has(self, file: object) -> bool:
        """Whether the run itself writes this file, or one below it."""
        paths = (self.journal, self.metrics, self.progress, self.phase, self.leases, self.peers)
        own = (*paths, self.kept, self.checkpoints)
        return isinstance(file, str) and any(Path(file).is_relative_to(path) for path in own)

    @property
    def run(self) -> Path:
        return self.root / "run.json"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def progress(self) -> Path:
        return self.root / "progress.json"

    @property
    def phase(self) -> Path:
        return self.root / ".phase"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def exported(self) -> Path:
        return self.root / "hf"

    @property
    def best(self) -> Path:
        """Holds the policy that was best on held-out prompts, under its step."""
        return self.root / "best"

    @property
    def token(self) -> Path:
        return self.root / ".token"

    @property
    def leases(self) -> Path:
        return self.root / ".leases"

    @property
    def peers(self) -> Path:
        """What tells this run's snapshots in memory from those of another in the same place."""
        return self.root / ".peers"

    @property
    def kept(self) -> Path:
        """Snapshots that were in memory as all nodes ended: the next attempt goes on from them."""
        return self.root / ".kept"


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace `path` so that a reader, or a crash, sees the old text or the new one, whole.

    Raises OSError about `path` where the directory is missing, full or read-only; `path` is then
    untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with about(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename inside `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with named(directory):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is; `RUN/progress.json`, replaced after every step.

    Of a command that is not ours any field but `step` may be absent.
    """

    step: int
    """Finished optimiser steps of the whole run, over all attempts."""
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
    eval: float | None = None
    """Newest held-out accuracy, 0 to 1."""
    eval_before: float | None = None
    """Held-out accuracy before the first step."""
    tokens_per_second: float = 0.0
    step_seconds: float = 0.0
    eta_seconds: float = 0.0
    checkpoint: int | None = None
    """Step of the newest whole checkpoint."""
    in_memory: int | None = None
    """The newest step that two nodes are known to hold in memory; one after it may be there."""
    at: str = field(default_factory=lambda: timestamp())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, path: Path) -> None:
        """Raises SupersededError where a later head has the run, OSError."""
        fence.check(fence.mine())
        write_atomically(path, json.dumps(self.as_dict()) + "\n")

    @classmethod
    def read(cls, path: Path) -> Progress | None:
        """The progress in `path`; None where there is none yet, or none that can be understood.

        A field that is damaged counts as absent; for `at` the file's own time stands then. Raises
        OSError.
        """
        try:
            row = stored.json_object(path)
            written = path.stat().st_mtime
        except FileNotFoundError:
            return None
        if row is None or not stored.is_count(row.get("step")):
            return None
        fitting = {
            one.name: row[one.name]
            for one in fields(cls)
            if one.name in row and _FITS[str(one.type)](row[one.name])
        }
        return cls(**{"at": timestamp(written), **fitting})


_FITS: Mapping[str, Callable[[object], bool]] = {
    "int": stored.is_count,
    "int | None": stored.is_count,
    "float": stored.is_number,
    "float | None": stored.is_number,
    "str": lambda value: isinstance(value, str),
}
"""Type of a field of Progress → whether a value from a file is one."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The driver's newest sign of life; `RUN/.phase`, written over after each part of a step."""

    attempt: int
    step: int
    """The step that it belongs to, which need not be finished."""
    done: str
    """The part that is over: generate, reward, forward, update, publish, step, eval, checkpoint; or
    repair, which begins."""

    @classmethod
    def read(cls, path: Path) -> Phase | None:
        """None where there is none yet, one just being written, or none that can be understood."""
        try:
            row = stored.json_object(path) or {}
        except OSError:
            return None
        attempt, step, done = (row.get(name) for name in ("attempt", "step", "done"))
        if stored.is_count(attempt) and stored.is_count(step) and isinstance(done, str):
            return cls(attempt, step, done)
        return None


PHASE_BYTES = 128


class PhaseFile:
    """Takes a sign of life in microseconds: one write in place, of fixed length, not synced.

    Whoever reads it runs on the same machine, hence sees what the kernel has; nothing that
    outlives the machine depends on it.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)

    def write(self, phase: Phase) -> None:
        text = json.dumps(asdict(phase)).ljust(PHASE_BYTES - 1) + "\n"
        os.pwrite(self._descriptor, text.encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)


def timestamp(seconds: float | None = None) -> str:
    """Now, or so many seconds after the epoch: UTC, ISO 8601 with milliseconds."""
    at = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="milliseconds")


def append_event(
    journal: Path,
    kind: str,
    sentence: str,
    details: Mapping[str, Any] | None = None,
    *,
    attempt: int | None = None,
    node: str | None = None,
    claim: fence.Claim | None = None,
    secrets: Iterable[str] = (),
) -> dict[str, Any]:
    """Append one event to the run's journal, durably, and return it.

    One `write` of one line on an O_APPEND descriptor: head and driver, which run on one machine,
    may both write without a lock. `claim`: the head's; a driver has it in its environment. Masked
    are `secrets`, and those that this process has in its environment: an error may quote either.

    Raises SupersededError where a later head has the run, OSError.
    """
    claim = claim or fence.mine()
    hidden = secret_texts(os.environ).union(secrets)
    event = {
        "at": timestamp(),
        "node": node or os.environ.get("ROLLCALL_NODE_NAME") or socket.gethostname(),
        "epoch": claim.epoch if claim else None,
        "attempt": attempt,
        "kind": kind,
        "sentence": redact(sentence, hidden),
        "details": redact_all(details or {}, hidden),
    }
    fence.check(claim)
    descriptor = os.open(journal, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        with named(journal):
            # A line that a crash tore has no end: it must not take this one with it.
            start = b"\n" if _is_torn(descriptor) else b""
            os.write(descriptor, start + line_of(event) + b"\n")
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return event


def _is_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
