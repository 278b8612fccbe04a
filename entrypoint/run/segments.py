"""A file of the run that grows with its age, in the store: what is sent does not grow with it.

A short file is one object of its name, as all others are. A longer one is in segments, objects of
one size below `history/NAME/`, each named by its offset; only the last one is sent again. The file
may also be cut or written anew: segments are compared from the last one, until one is the same. An
object of the file's own name beside its segments counts: they are incomplete, or older than it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Event
from typing import IO

from contract.files.os_errors import replacing_path
from contract.run_dir import sync_directory
from entrypoint.run.store import Store, StoreError
from entrypoint.run.transfers import Transfers

SEGMENT_BYTES = 1 << 20
AT_ONCE = 8
"""Segments that are fetched at the same time."""


class Segments:
    """One file. A later head begins with what the store has."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._there: list[tuple[int, str]] | None = None
        """Bytes and SHA-256 of each segment, "" if it is not known; None: not looked yet."""
        self._is_split = False
        """The store has no object of the file's own name."""

    def send(self, file: IO[bytes], size: int, moves: Callable[[], None]) -> None:
        """Send the first `size` bytes, as far as the store lacks them; call `moves` with each part.

        Raises StoreError and OSError.
        """
        there = self._look() if self._there is None else self._there
        self._there = None  # until all is sent
        kept = len(there)
        while kept and not self._is_same(file, size, kept - 1, there[kept - 1]):
            kept -= 1
        for number in reversed(range(kept, len(there))):  # what is left fits together
            self._store.remove(_place(self._name, number))
        there = there[:kept]
        if there and there[-1][0] < SEGMENT_BYTES and _end(there) < size:
            there.pop()
        while (number := len(there)) * SEGMENT_BYTES < size and _end(there) < size:
            content = _part(file, number, size)
            if not content:
                break  # it was cut meanwhile: the next call sees it
            self._store.write(_place(self._name, number), content)
            there.append((len(content), hashlib.sha256(content).hexdigest()))
            moves()
        self._there = there
        if not self._is_split:
            self._store.remove(self._name)
            self._is_split = True

    def _look(self) -> list[tuple[int, str]]:
        """Return what the store has, and remove there what does not follow from it."""
        sizes = self._store.sizes(_directory(self._name))
        there = _from_the_beginning(sizes)
        for stray in sizes.keys() - {_file(number) for number in range(len(there))}:
            self._store.remove(f"{_directory(self._name)}/{stray}")
        return there

    def is_whole(self) -> None:
        """Note that the store has an object of the file's own name again."""
        self._is_split = False

    def _is_same(self, file: IO[bytes], size: int, number: int, known: tuple[int, str]) -> bool:
        """Return whether a segment of the store has what the file has there."""
        length, sha256 = known
        content = _part(file, number, min(size, number * SEGMENT_BYTES + length))
        if len(content) != length:
            return False
        if sha256:
            return hashlib.sha256(content).hexdigest() == sha256
        return self._store.read(_place(self._name, number)) == content


def fetch(store: Store, name: str, to: Path) -> bool:
    """Fetch a file durably from its segments; return whether there are any.

    Raises StoreError and OSError.
    """
    if not (there := _from_the_beginning(store.sizes(_directory(name)))):
        return False
    part = to.with_name(f".{to.name}.part")
    with replacing_path(to):
        with part.open("wb") as target:
            calls = [
                partial(_fetch_one, store, _place(name, number), target.fileno(), number)
                for number in range(len(there))
            ]
            Transfers("download-history", calls, AT_ONCE, Event()).ended()
            target.flush()
            os.fsync(target.fileno())
        part.rename(to)
    sync_directory(to.parent)
    return True


def _fetch_one(store: Store, place: str, target: int, number: int) -> None:
    content = store.read(place)
    if content is None:
        raise StoreError(f"{place} is gone while it is fetched")
    at = number * SEGMENT_BYTES
    while content:
        written = os.pwrite(target, content, at)
        content, at = content[written:], at + written


def _from_the_beginning(sizes: Mapping[str, int]) -> list[tuple[int, str]]:
    """Return the segments that follow one another from the beginning."""
    found: list[tuple[int, str]] = []
    while (size := sizes.get(_file(len(found)))) and _end(found) == len(found) * SEGMENT_BYTES:
        found.append((size, ""))
    return found


def _end(there: list[tuple[int, str]]) -> int:
    return (len(there) - 1) * SEGMENT_BYTES + there[-1][0] if there else 0


def _part(file: IO[bytes], number: int, size: int) -> bytes:
    """Return a segment of the first `size` bytes of a file."""
    at = number * SEGMENT_BYTES
    file.seek(at)
    return file.read(max(0, min(SEGMENT_BYTES, size - at)))


def _directory(name: str) -> str:
    return f"history/{name}"


def _file(number: int) -> str:
    return f"{number * SEGMENT_BYTES:015d}"


def _place(name: str, number: int) -> str:
    return f"{_directory(name)}/{_file(number)}"
