"""Fetches a checkpoint from the store to the run directory, several files at once.

A file that has arrived with its checksum stays there until the checkpoint is complete. So another
try, also that of a later head, fetches the other files alone. Each part of a file is asked for
until the store gives it: the timeout counts from the newest part.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from functools import partial
from pathlib import Path
from threading import Event

from contract.files.os_errors import replacing_path, with_path
from contract.manifest import MANIFEST, WrittenFile, checkpoint_path, files_in
from contract.run_dir import sync_directory, write_atomically
from entrypoint.net import wait
from entrypoint.run.patience import Patience
from entrypoint.run.store import Store, checkpoint_name
from entrypoint.run.transfers import Transfers

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


def fetch(store: Store, checkpoints: Path, step: int, patience: Patience) -> int:
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
        with with_path(part), part.open("wb") as target:
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
        with part.open("wb") as target:
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
