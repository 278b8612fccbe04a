"""Files of a run in the object store: fetches checkpoints, and sends and fetches files that grow.

Several files of a checkpoint are fetched at once. A file that has arrived with its checksum stays
there until the checkpoint is complete. So another try, also that of a later head, fetches the other
files alone. Each part of a file is asked for until the store gives it: the timeout counts from the
newest part.

What is sent of a file does not grow with its age. A short file is one object of its name, as all
others are. A longer one is in segments, objects of one size below `history/NAME/`, each named by
its offset; only the last one is sent again. The file may also be cut or written anew: segments are
compared from the last one, until one is the same. An object of the file's own name beside its
segments counts: they are incomplete, or older than it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Event
from typing import IO

from contract.files.os_errors import replacing_path, with_path
from contract.files.plain_files import create_plain
from contract.manifest import MANIFEST, WrittenFile, checkpoint_path, files_in
from contract.run_dir import sync_directory, write_atomically
from entrypoint.net import wait
from entrypoint.run.object_store import Patience, Store, StoreError, Transfers, checkpoint_name

log = logging.getLogger(__name__)

PART_BYTES = 32 << 20
FILES_AT_ONCE = 6
LOOK_SECONDS = 0.5
TELL_SECONDS = 10.0
"""Between two lines of the log about the progress."""
INCOMING = ".{}.incoming"
"""Name of the checkpoint's directory until all its files are there."""
FETCHING = ".manifest"
"""Name of the manifest there: the files that have arrived are those of this manifest."""


class CorruptCheckpointError(Exception):
    """The store has not all of a checkpoint; the sentence says what is wrong."""


def fetch_checkpoint(store: Store, checkpoints: Path, step: int, patience: Patience) -> int:
    """Fetch a checkpoint; return its bytes.

    Raises CorruptCheckpointError, StoreError, InterruptedWaitError, and OSError if the disk does
    not take it.
    """
    name = f"{checkpoint_name(step)}/{MANIFEST}"
    manifest = patience.ask(store, lambda: store.read(name)) or b""
    directory = checkpoint_path(checkpoints, step)
    incoming = directory.with_name(INCOMING.format(directory.name))
    try:
        files = files_in(manifest)
        _prepare(incoming, manifest.decode())
        _Download(store, step, incoming, patience).files(files)
    except (ValueError, CorruptCheckpointError) as error:
        shutil.rmtree(incoming, ignore_errors=True)
        raise CorruptCheckpointError(str(error)) from None
    (incoming / FETCHING).rename(incoming / MANIFEST)
    sync_directory(incoming)
    shutil.rmtree(directory, ignore_errors=True)
    incoming.rename(directory)
    sync_directory(checkpoints)
    return sum(file.bytes for file in files)


def _prepare(incoming: Path, manifest: str) -> None:
    """Keep the files that have arrived before, if they are those of `manifest`."""
    mark = incoming / FETCHING
    if mark.exists() and mark.read_text() == manifest:
        return
    for old in incoming.parent.glob(INCOMING.format("global_step_*")):
        shutil.rmtree(old)
    incoming.mkdir(parents=True)
    write_atomically(mark, manifest)


class _Download:
    """The files of one checkpoint on their way."""

    def __init__(self, store: Store, step: int, incoming: Path, patience: Patience) -> None:
        self._store = store
        self._step = step
        self._incoming = incoming
        self._patience = patience
        self._over = Event()
        """No further part is asked for."""
        self._arrived: dict[str, int] = {}
        """Name of a file → its bytes that have arrived in this try."""

    def files(self, files: list[WrittenFile]) -> None:
        """Fetch the files that are not here yet. Raises what `fetch` raises."""
        missing = [file for file in files if not self._is_here(file)]
        total = sum(file.bytes for file in files)
        here = total - sum(file.bytes for file in missing)
        calls = [partial(self._file, file) for file in _largest_first(missing)]
        transfers = Transfers("download", calls, FILES_AT_ONCE, self._over)
        began = told = time.monotonic()
        try:
            while not transfers.ended(LOOK_SECONDS):
                if self._patience.stop.is_set():
                    raise wait.InterruptedWaitError(f"asked to stop while fetching {self._what}")
                if time.monotonic() - told >= TELL_SECONDS:
                    told = time.monotonic()
                    self._tell(here, total, told - began)
        finally:
            self._over.set()
        self._tell(here, total, max(1e-3, time.monotonic() - began))

    @property
    def _what(self) -> str:
        return f"checkpoint {self._step} from {self._store.url}"

    def _tell(self, here: int, total: int, seconds: float) -> None:
        arrived = sum(self._arrived.copy().values())
        log.info(
            "fetching %s: %.3f of %.3f GB, %.0f MB/s%s",
            self._what,
            (here + arrived) / 1e9,
            total / 1e9,
            arrived / seconds / 1e6,
            f" ({here / 1e9:.3f} GB were here already)" if here else "",
        )

    def _is_here(self, file: WrittenFile) -> bool:
        path = self._incoming / file.name
        return path.is_file() and path.stat().st_size == file.bytes

    def _file(self, file: WrittenFile) -> None:
        """Fetch one file durably. It gets its name after its checksum was compared."""
        to, digest = self._incoming / file.name, hashlib.sha256()
        part = to.with_name(f".{to.name}.part")
        to.parent.mkdir(parents=True, exist_ok=True)
        name = f"{checkpoint_name(self._step)}/{file.name}"
        there = self._patience.ask(self._store, partial(self._store.size, name))
        if there != file.bytes:
            why = "is missing"
            if there is not None:
                why = f"has {there} bytes, its manifest says {file.bytes}"
            raise CorruptCheckpointError(f"{file.name} {why}")
        self._arrived[file.name] = 0
        with with_path(part), create_plain(part, self._incoming) as target:
            for start in range(0, file.bytes, PART_BYTES):
                if self._over.is_set():
                    return
                size = min(PART_BYTES, file.bytes - start)
                ask = partial(self._store.part, name, start, size)
                content = self._patience.ask(self._store, ask)
                digest.update(content)
                target.write(content)
                self._arrived[file.name] += len(content)
            target.flush()
            os.fsync(target.fileno())
        if digest.hexdigest() != file.sha256:
            sentence = f"{file.name} does not have the checksum that its manifest gives"
            raise CorruptCheckpointError(sentence)
        part.rename(to)


def whole(store: Store, name: str, to: Path) -> bool:
    """Fetch a file durably, in parts; return whether the store has it.

    Raises StoreError and OSError.
    """
    size = store.size(name)
    if size is None:
        return False
    part = to.with_name(f".{to.name}.part")
    with replacing_path(to):
        with create_plain(part) as target:
            for start in range(0, size, PART_BYTES):
                target.write(store.part(name, start, min(PART_BYTES, size - start)))
            target.flush()
            os.fsync(target.fileno())
        part.rename(to)
    sync_directory(to.parent)
    return True


def _largest_first(files: list[WrittenFile]) -> list[WrittenFile]:
    """Return an order in which no large file is left alone in the end."""
    return sorted(files, key=lambda file: -file.bytes)


SEGMENT_BYTES = 1 << 20
SEGMENTS_AT_ONCE = 8
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


def fetch_growing(store: Store, name: str, to: Path) -> bool:
    """Fetch a file durably from its segments; return whether there are any.

    Raises StoreError and OSError.
    """
    if not (there := _from_the_beginning(store.sizes(_directory(name)))):
        return False
    part = to.with_name(f".{to.name}.part")
    with replacing_path(to):
        with create_plain(part) as target:
            calls = [
                partial(_fetch_one, store, _place(name, number), target.fileno(), number)
                for number in range(len(there))
            ]
            Transfers("download-history", calls, SEGMENTS_AT_ONCE, Event()).ended()
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
