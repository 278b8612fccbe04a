"""The files of an index: its manifest, written last, and what each message about them says.

INDEX/index.json            what the index is; `complete` is false while it is built
INDEX/passages/00000.arrow  the passages, PART a file
INDEX/bm25/                 tantivy's files, for the kind bm25
INDEX/vectors/00000.npy     one vector a passage, for the kind dense
INDEX/faiss.index           for the kind dense with another index than Flat
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

MANIFEST = "index.json"
FAISS_INDEX = "faiss.index"
VERSION = 1
PART = 65_536
"""Passages in one file; what is lost when a build is killed."""
CHUNK = 1 << 20


class IndexFault(ValueError):  # noqa: N818 - it also names faults of a corpus or a model
    """An index, corpus or model that cannot be used; the message says what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    kind: str
    """`bm25` or `dense`."""
    settings: Mapping[str, Any]
    """What decides the answers besides the passages: language, model, faiss index."""
    corpus: str = ""
    """Checksum of all passages, in order."""
    passages: int = 0
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Bytes and checksum of every file, by its path below the index."""
    complete: bool = False
    version: int = VERSION


def write_manifest(directory: Path, manifest: Manifest) -> None:
    path = directory / f".{MANIFEST}.{os.getpid()}"
    path.write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    publish(path, directory / MANIFEST)


def read_manifest(directory: Path) -> Manifest:
    """Whether complete or not. Raises IndexFault."""
    try:
        manifest = Manifest(**json.loads((directory / MANIFEST).read_text()))
    except FileNotFoundError:
        what = "has no index.json" if directory.is_dir() else "no such directory"
        raise IndexFault(
            f"{directory}: {what}; `rollcall prepare index --corpus FILE --out {directory}` "
            "makes an index there"
        ) from None
    except OSError as error:
        raise IndexFault(f"{directory / MANIFEST}: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise IndexFault(
            f"{directory / MANIFEST}: not the manifest of an index: {error}"
        ) from error
    listed = manifest.files
    if not isinstance(listed, dict) or not all(_is_row(row) for row in listed.values()):
        raise IndexFault(f"{directory / MANIFEST}: not the manifest of an index: its `files`")
    if manifest.version != VERSION:
        raise IndexFault(
            f"{directory}: an index of version {manifest.version}; this Rollcall reads version "
            f"{VERSION}: make it again with --force"
        )
    return manifest


def _is_row(row: object) -> bool:
    return isinstance(row, dict) and "bytes" in row and "xxh3" in row


def read_complete(directory: Path) -> Manifest:
    """The manifest of an index whose files are there, with their sizes. Raises IndexFault."""
    manifest = read_manifest(directory)
    if not manifest.complete:
        raise IndexFault(
            f"{directory}: is half-built; run the same `rollcall prepare index` again, which "
            "continues it"
        )
    for name, known in manifest.files.items():
        found = size(directory / name)
        if found != known["bytes"]:
            what = "is missing" if found is None else f"has {found} bytes, not {known['bytes']}"
            raise IndexFault(
                f"{directory / name}: {what}; the index is damaged: make it again with --force"
            )
    return manifest


def describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Bytes and checksum of every file of the index."""
    paths = sorted(p for p in directory.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {
        str(path.relative_to(directory)): {"bytes": path.stat().st_size, "xxh3": checksum(path)}
        for path in paths
        if path.name != MANIFEST
    }


def damaged_file(directory: Path, manifest: Manifest) -> str | None:
    """The first file whose content is not what the manifest says."""
    for name, known in manifest.files.items():
        if size(directory / name) != known["bytes"] or checksum(directory / name) != known["xxh3"]:
            return name
    return None


def checksum(path: Path) -> str:
    hash_ = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            hash_.update(chunk)
    return hash_.hexdigest()


def size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def publish(written: Path, path: Path) -> None:
    """Rename a whole file to its name, so that a kill leaves the old file or the new one."""
    with written.open("rb") as file:
        os.fsync(file.fileno())
    written.replace(path)


@contextlib.contextmanager
def only_builder(directory: Path) -> Iterator[None]:
    """Raises IndexFault while another process builds this index. The lock ends with its process."""
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise IndexFault(f"{directory}: another process builds this index now") from None
        yield
