"""Manifests of checkpoints: a checkpoint directory is complete once it has its manifest.

A manifest names its run. A run that begins takes what it finds, of whichever run: so it can go on
from a copy, or from --ckpt_path of another run. It then keeps in `RUN/.origin.json` from where it
began. From there on it takes its own checkpoints, and of those others what is not later than its
beginning.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path, PurePath
from typing import Any

from contract import lease
from contract.files import stored_json
from contract.files.os_errors import with_path
from contract.run_dir import RunFiles, sync_directory, write_atomically

MANIFEST = "MANIFEST.json"
BROKEN = "MANIFEST.broken.json"
LEFT = "MANIFEST.left.json"
"""Of a checkpoint that --load_step passed over to resume from an earlier step."""
LONGEST_PATH = 2048
CHECKPOINT_NAME = re.compile(r"global_step_(0|[1-9][0-9]{0,15})")


def checkpoint_path(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"global_step_{step}"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of a checkpoint, with the size and checksum that its writer computed."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a run takes for its own; without `run`, all that it finds."""

    run: str | None = None
    """The run's id, of run.json. A trainer without a head has none."""
    begun: bool = False
    origins: frozenset[str] = frozenset()
    """Ids of the other runs whose checkpoints were there when it began."""
    step: int = 0
    """The step from which it began."""

    def takes(self, run: str | None, step: int) -> bool:
        """Return whether a checkpoint counts. `run`: as its manifest names it, if it does."""
        if self.run is None or not self.begun or run in (None, self.run):
            return True
        return run in self.origins and step <= self.step


ANY_RUN = Lineage()


@dataclass(frozen=True, slots=True)
class Made:
    """Of which step, and of which run, a checkpoint says that it is."""

    step: int | None = None
    run: str | None = None
    """None: a trainer without a head, or one of an older version, wrote it."""


def write_manifest(
    directory: Path, step: int, written: Iterable[WrittenFile] = (), run: str | None = None
) -> None:
    """Complete the checkpoint in `directory`: write the size and SHA-256 of every file.

    `run`: the run's id. Files in `written` are not read again, but they must be here: processes of
    other nodes wrote them. Raises SupersededError if a later head owns the run, and OSError.
    """
    known = {}
    for file in written:
        _look_for(directory / file.name, file.bytes)
        known[file.name] = {"bytes": file.bytes, "sha256": file.sha256}
    found = (
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and path.name != MANIFEST and not is_deleted(path)
    )
    # A list of a directory on NFS may be old, and lack a file of another node that is there.
    names = sorted({*found, *known})
    files = {name: known.get(name) or _entry(directory / name) for name in names}
    lease.check(lease.mine())
    of_run = {} if run is None else {"run": run}
    row = {"step": step, **of_run, "files": files}
    write_atomically(directory / MANIFEST, json.dumps(row, indent=1))


def is_deleted(path: Path) -> bool:
    """Return whether NFS keeps the file only because a process of this node has it open."""
    return path.name.startswith(".nfs")


def _look_for(path: Path, size: int) -> None:
    """Raises OSError if this node does not see all of a file that a process has written."""
    try:
        here = path.stat().st_size
    except FileNotFoundError:
        why = "was written on another node and is not on this one: the nodes do not share it"
        raise FileNotFoundError(errno.ENOENT, why, str(path)) from None
    if here != size:
        why = f"has {here} bytes here, and {size} were written"
        raise OSError(errno.EIO, why, str(path))


def listing(files: Iterable[WrittenFile]) -> str:
    """Return the text of a manifest of these files, which belong to no step."""
    rows = {file.name: {"bytes": file.bytes, "sha256": file.sha256} for file in files}
    return json.dumps({"files": rows}, indent=1)


def _entry(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def put_aside(directory: Path) -> None:
    """Mark a corrupt checkpoint, so that no reader takes it for complete by its sizes alone.

    On a read-only disk the checkpoint stays as it is.
    """
    _rename_manifest(directory, BROKEN)


def leave(directory: Path) -> None:
    """Mark a checkpoint that is later than the step that --load_step resumes from."""
    _rename_manifest(directory, LEFT)


def _rename_manifest(directory: Path, name: str) -> None:
    with suppress(OSError):
        (directory / MANIFEST).replace(directory / name)
        sync_directory(directory)


def fault_of(directory: Path, *, checksums: bool = True, lineage: Lineage = ANY_RUN) -> str | None:
    """Return what is wrong with the checkpoint in `directory`; None if it is complete.

    `lineage`: of the run that is to take it.
    """
    try:
        text = _text_of(directory)
        files, made = files_in(text), made_in(text)
    except FileNotFoundError:
        return _without_manifest(directory)
    except ValueError as error:
        return str(error)
    if made.step is not None and not _is_named(directory, made.step):
        return f"its manifest says step {made.step}"
    if not lineage.takes(made.run, made.step or 0):
        return f"it is of another run, {made.run}"
    for expected in files:
        name, path = expected.name, directory / expected.name
        try:
            size = path.stat().st_size
            if not path.is_file():
                return f"{name} is not a file"
            if size != expected.bytes:
                return f"{name} has {size} bytes, its manifest says {expected.bytes}"
            if checksums and sha256(path) != expected.sha256:
                return f"{name} does not have the checksum that its manifest gives"
        except (FileNotFoundError, NotADirectoryError):
            return f"{name} is missing"
    return None


def made_by(directory: Path) -> Made:
    """Return of which step and run a checkpoint says that it is; of none if it cannot be read."""
    try:
        return made_in(_text_of(directory))
    except OSError:
        return Made()


def made_in(manifest: bytes) -> Made:
    """Return of which step and run the text of a manifest is."""
    row = _row(manifest)
    step, run = row.get("step"), row.get("run")
    return Made(step if stored_json.is_count(step) else None, run if isinstance(run, str) else None)


def is_strange(directory: Path, lineage: Lineage) -> bool:
    """Return whether a whole manifest names another run, whose checkpoint the run does not take."""
    made = made_by(directory)
    return not lineage.takes(made.run, made.step or 0)


def _is_named(directory: Path, step: int) -> bool:
    """Return whether a directory has the name of its step, or a name of another kind."""
    named = CHECKPOINT_NAME.fullmatch(directory.name)
    return named is None or int(named[1]) == step


def files_of(directory: Path) -> list[WrittenFile]:
    """Return the files that the manifest names. Raises ValueError if it is damaged, OSError."""
    return files_in(_text_of(directory))


def _text_of(directory: Path) -> bytes:
    with with_path(directory / MANIFEST):
        return (directory / MANIFEST).read_bytes()


def files_in(manifest: bytes) -> list[WrittenFile]:
    """Return the files that the text of a manifest names. Raises ValueError if it is damaged."""
    files = _row(manifest).get("files")
    if not isinstance(files, dict) or not all(starmap(_is_entry, files.items())):
        raise ValueError("its manifest is damaged")
    return [WrittenFile(name, entry["bytes"], entry["sha256"]) for name, entry in files.items()]


def _row(manifest: bytes) -> dict[str, Any]:
    """Return the fields of the text of a manifest; {} if it is damaged."""
    try:
        row = stored_json.parsed(manifest)
    except ValueError:
        row = None
    return row if isinstance(row, dict) else {}


def _without_manifest(directory: Path) -> str:
    if (directory / BROKEN).exists():
        return "it was found broken before"
    if (directory / LEFT).exists():
        return (
            "it was put aside when --load_step went back to a step before it. To go on from it, "
            f"rename its {LEFT} to {MANIFEST}"
        )
    return "no manifest: it was never finished"


def _is_entry(name: str, entry: Any) -> bool:
    """Return whether the entry is a file below the directory, with its size and checksum."""
    parts = PurePath(name).parts
    below = parts and ".." not in parts and not name.startswith("/") and "\0" not in name
    fits = len(name.encode()) < LONGEST_PATH and all(len(part.encode()) < 256 for part in parts)
    return (
        bool(below and fits)
        and isinstance(entry, dict)
        and stored_json.is_count(entry.get("bytes"))
        and isinstance(entry.get("sha256"), str)
    )


def steps_on_disk(checkpoints: Path) -> list[int]:
    """Return the steps of all checkpoint directories, newest first, complete or not."""
    if not checkpoints.is_dir():
        return []
    matches = (CHECKPOINT_NAME.fullmatch(path.name) for path in checkpoints.iterdir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def newest_checkpoint(
    checkpoints: Path, *, checksums: bool = True, lineage: Lineage = ANY_RUN
) -> int | None:
    """Return the newest step that has a complete checkpoint; None if there is none.

    `lineage`: of the run that is to take it.
    """
    for step in steps_on_disk(checkpoints):
        directory = checkpoint_path(checkpoints, step)
        if fault_of(directory, checksums=checksums, lineage=lineage) is None:
            return step
    return None


def sha256(path: Path) -> str:
    with with_path(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lineage_of(files: RunFiles) -> Lineage:
    """Return the run's lineage; a damaged file counts as absent. Raises OSError."""
    run = _text(stored_json.json_object_or_empty(files.run).get("run_id"))
    row = stored_json.json_object_or_empty(files.origin)
    step, origins = row.get("step"), row.get("runs")
    if not stored_json.is_count(step) or not isinstance(origins, list):
        return Lineage(run)
    return Lineage(run, True, frozenset(filter(_text, origins)), step)


def kept_run_id(files: RunFiles) -> str | None:
    """Return the run's id as a trainer has kept it beside run.json; None if there is none."""
    return _text(stored_json.json_object_or_empty(files.origin).get("run"))


def keep_origin(files: RunFiles, lineage: Lineage) -> None:
    """Keep from where a run has begun. Raises OSError."""
    row = {"run": lineage.run, "step": lineage.step, "runs": sorted(lineage.origins)}
    write_atomically(files.origin, json.dumps(row) + "\n")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
