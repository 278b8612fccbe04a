"""Uploads files of the run directory, several at once, and computes their checksums."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event
from typing import IO

from contract.manifest import WrittenFile
from entrypoint.run.ownership import Ownership
from entrypoint.run.store import Store
from entrypoint.run.transfers import Transfers

FILES_AT_ONCE = 4
"""Each needs memory for two parts."""


class CorruptFileError(Exception):
    """A file of the run directory has another checksum than its manifest gives."""


class FileUploads:
    """Uploads files below `root`. A retry leaves out those that this head has uploaded."""

    def __init__(self, store: Store, root: Path, ownership: Ownership) -> None:
        self._store = store
        self._root = root
        self._ownership = ownership
        self._sent: dict[tuple[int, int, int], str] = {}
        """Inode, size and time of each file that was uploaded → its SHA-256."""
        self.moved = time.monotonic()
        """When the store last took a part of a file."""

    def upload(self, files: Mapping[Path, str]) -> list[WrittenFile]:
        """Upload files; return them with their checksums, named by their paths below the root.

        `files`: path → SHA-256, or "" if it is not known. All are opened first, so that a deletion
        does not end the upload. Raises FileNotFoundError, CorruptFileError, TakenOverError,
        StoreError.
        """
        with ExitStack() as opened:
            handles = {path: opened.enter_context(path.open("rb")) for path in files}
            calls = [partial(self._one, path, file, files[path]) for path, file in handles.items()]
            Transfers("upload-file", calls, FILES_AT_ONCE, Event()).ended()
            keys = {path: _key(file) for path, file in handles.items()}
            return [
                WrittenFile(str(path.relative_to(self._root)), key[1], self._sent[key])
                for path, key in keys.items()
            ]

    def _one(self, path: Path, file: IO[bytes], sha256: str) -> None:
        key = _key(file)
        if key in self._sent:
            return
        self._ownership.take_or_check()
        watched = _Watched(file, self.moves)
        self._store.upload(str(path.relative_to(self._root)), watched)
        if sha256 not in ("", watched.digest.hexdigest()):
            raise CorruptFileError(
                f"{path.name} does not have the checksum that its manifest gives"
            )
        self._sent[key] = watched.digest.hexdigest()
        self.moves()

    def moves(self) -> None:
        """The store has taken a part of a file."""
        self.moved = time.monotonic()


def _key(file: IO[bytes]) -> tuple[int, int, int]:
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns


class Beginning:
    """What a file has now: it may grow, or be replaced, while this is read."""

    def __init__(self, file: IO[bytes], moves: Callable[[], None]) -> None:
        """`moves`: called with each part that is read."""
        self._file = file
        self.size = self._left = os.fstat(file.fileno()).st_size
        self._moves = moves

    def read(self, size: int = -1, /) -> bytes:
        self._moves()
        part = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(part)
        return part


class _Watched:
    """A file that hashes what is read, and reports that the store has taken a part.

    The store has taken the part before if that was a whole one.
    """

    def __init__(self, file: IO[bytes], moves: Callable[[], None]) -> None:
        self._file = file
        self._moves = moves
        self.digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        if 0 < size <= self._file.tell():
            self._moves()
        part = self._file.read(size)
        self.digest.update(part)
        return part
