"""A directory of prepared data: made once, recognised afterwards, whole or not there.

`prepared.json` is written last. It holds the arguments and the checksum of every file. So the same
command keeps complete files, rebuilds damaged ones, and refuses files made with other arguments.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

MARKER = "prepared.json"
UNFINISHED = ".prepare-"
"""What the name of a directory begins with in which a run is at work."""


class PrepareError(ValueError):
    """Data that cannot be made with these arguments; the message says what would be right."""


Make = Callable[[Path], Collection[str] | None]
"""Writes files into a directory. Returns the names of those that it put into `out` itself."""


def prepare(out: Path, arguments: Mapping[str, Any], make: Make, *, force: bool) -> bool:
    """Let `make` fill `out`; False where it already holds exactly this.

    `make` writes into a directory of its own; files of the same names are replaced, others stay.
    Raises PrepareError if `out` was made with other arguments and `force` is not given.
    """
    if not force and _holds(out, arguments):
        return False
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / MARKER).unlink(missing_ok=True)
        with _unfinished(out) as directory:
            beside = make(directory) or ()
            known = {name: sha256(out / name) for name in sorted(beside)}
            _move(directory, out, arguments, known)
    except OSError as error:
        raise PrepareError(f"{out}: not writable: {error.strerror or error}") from error
    return True


@contextlib.contextmanager
def _unfinished(out: Path) -> Iterator[Path]:
    """Yield a new directory below `out`, which is removed at the end; so are those of killed runs.

    Runs at work share a lock on `out`, which ends with their processes. Raises OSError.
    """
    locked = os.open(out, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # another run is at work, or the storage has no locks
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in out.glob(f"{UNFINISHED}*"):
                shutil.rmtree(left, ignore_errors=True)
        with contextlib.suppress(OSError):
            fcntl.flock(locked, fcntl.LOCK_SH)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=out) as made:
            yield Path(made)
    finally:
        os.close(locked)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _holds(out: Path, arguments: Mapping[str, Any]) -> bool:
    try:
        marker = json.loads((out / MARKER).read_text())
        made_with, files = marker["arguments"], marker["sha256"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    if made_with != arguments:
        names = sorted(arguments.keys() | made_with.keys())
        differences = [
            f"{name} {made_with.get(name)} (now {arguments.get(name)})"
            for name in names
            if made_with.get(name) != arguments.get(name)
        ]
        raise PrepareError(
            f"{out}: was made with other arguments: {', '.join(differences)}; "
            "give another --out, or --force to make it again"
        )
    return all((out / name).is_file() and sha256(out / name) == known for name, known in files)


def _move(made: Path, out: Path, arguments: Mapping[str, Any], beside: Mapping[str, str]) -> None:
    """`beside`: checksums of files that are in `out` already."""
    names = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
    checksums = {name: sha256(made / name) for name in names}
    marker = {"arguments": arguments, "sha256": {**checksums, **beside}}
    (made / MARKER).write_text(json.dumps(marker, indent=1) + "\n")
    for name in [*names, MARKER]:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        with (made / name).open("rb") as file:
            os.fsync(file.fileno())
        (made / name).chmod(0o644)  # safetensors leaves its files to their owner alone
        (made / name).replace(out / name)


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
