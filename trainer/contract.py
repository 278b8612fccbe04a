"""The border between the entrypoint and a trainer: exit codes, files, progress, events.

Torch-free: the entrypoint imports it at start-up. Everything else that crosses the border is a
command line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

from trainer import fence


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


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace `path` so that a reader, or a crash, sees the old text or the new one, whole.

    Raises OSError where the directory is missing, full or read-only; `path` is then untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is; `RUN/progress.json`, replaced after every step."""

    step: int
    """Finished optimiser steps of the whole run, over all attempts."""
    total_steps: int
    samples: int
    """Completions trained on so far."""
    attempt: int
    reward: float
    """Mean reward of the step's samples."""
    reward_first: float
    """Mean reward of the run's first step."""
    kl: float = 0.0
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
    """The newest step that two nodes were known to hold in memory; one after it may be there."""
    at: str = field(default_factory=lambda: timestamp())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, path: Path) -> None:
        """Raises SupersededError where a later head has the run, OSError."""
        fence.check(fence.mine())
        write_atomically(path, json.dumps(self.as_dict()) + "\n")

    @classmethod
    def read(cls, path: Path) -> Progress | None:
        """The progress in `path`; None where there is none yet."""
        try:
            row = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in row.items() if name in known})


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
        """None where there is none yet, or one just being written."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
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


def timestamp() -> str:
    """Now, UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def append_event(
    journal: Path,
    kind: str,
    sentence: str,
    details: Mapping[str, Any] | None = None,
    *,
    attempt: int | None = None,
    node: str | None = None,
    lease: Path | None = None,
) -> dict[str, Any]:
    """Append one event to the run's journal, durably, and return it.

    One `write` of one line on an O_APPEND descriptor: head and driver, which run on one machine,
    may both write without a lock. `lease`: the head's; a driver has it in its environment.

    Raises SupersededError where a later head has the run, OSError.
    """
    lease = lease or fence.mine()
    event = {
        "at": timestamp(),
        "node": node or os.environ.get("ROLLCALL_NODE_NAME") or socket.gethostname(),
        "epoch": fence.epoch(lease),
        "attempt": attempt,
        "kind": kind,
        "sentence": sentence,
        "details": dict(details or {}),
    }
    fence.check(lease)
    descriptor = os.open(journal, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        # A line that a crash tore has no end: it must not take this one with it.
        start = "\n" if _is_torn(descriptor) else ""
        os.write(descriptor, f"{start}{json.dumps(event)}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return event


def _is_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def read_events(journal: Path) -> Iterator[dict[str, Any]]:
    """The journal's events, oldest first; a line torn by a crash is passed over.

    So is one of an older head after one of a newer: what froze between its look at the leases and
    its write comes too late to count.
    """
    try:
        lines = journal.read_text().splitlines()
    except FileNotFoundError:
        return
    newest = 0
    for line in lines:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        epoch = event.get("epoch") or newest
        if epoch >= newest:
            newest = epoch
            yield event


MANIFEST = "MANIFEST.json"
CHECKPOINT_NAME = re.compile(r"global_step_(\d+)")


def checkpoint_path(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"global_step_{step}"


@dataclass(frozen=True, slots=True)
class Written:
    """A file of a checkpoint as it was written, which need not be read to be confirmed."""

    name: str
    bytes: int
    sha256: str


def write_manifest(directory: Path, step: int, written: Iterable[Written] = ()) -> None:
    """Confirm the checkpoint in `directory`: sizes and SHA-256 of every file, written last.

    Those in `written` are taken at their word; any other file is read. Raises SupersededError
    where a later head has the run, OSError.
    """
    known = {one.name: {"bytes": one.bytes, "sha256": one.sha256} for one in written}
    names = sorted(
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and path.name != MANIFEST
    )
    files = {name: known.get(name) or _entry(directory / name) for name in names}
    fence.check(fence.mine())
    write_atomically(directory / MANIFEST, json.dumps({"step": step, "files": files}, indent=1))


def _entry(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def fault_of(directory: Path, *, checksums: bool = True) -> str | None:
    """What is wrong with the checkpoint in `directory`, in words; None where it is whole."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        listed = manifest["files"].items()
    except FileNotFoundError:
        return "no manifest: it was never finished"
    except (ValueError, KeyError, AttributeError, TypeError):
        return "its manifest is torn"
    for name, entry in listed:
        path = directory / name
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return f"{name} is missing"
        if size != entry["bytes"]:
            return f"{name} has {size} bytes, its manifest says {entry['bytes']}"
        if checksums and sha256(path) != entry["sha256"]:
            return f"{name} does not have the checksum that its manifest gives"
    return None


def steps_on_disk(checkpoints: Path) -> list[int]:
    """The steps of all checkpoint directories, newest first, whole or not."""
    if not checkpoints.is_dir():
        return []
    matches = (CHECKPOINT_NAME.fullmatch(path.name) for path in checkpoints.iterdir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def newest_checkpoint(checkpoints: Path, *, checksums: bool = True) -> int | None:
    """The newest step whose checkpoint is whole; None where there is none."""
    for step in steps_on_disk(checkpoints):
        if fault_of(checkpoint_path(checkpoints, step), checksums=checksums) is None:
            return step
    return None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
