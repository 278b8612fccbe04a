"""Uploads complete checkpoints to the store of ROLLCALL_STORAGE, from a thread of the head.

The thread looks at the run directory; the trainer knows nothing of it, and no step waits for it.
The manifest of a checkpoint is uploaded last, if the checksums of all its files were right. While
the store does not answer, the thread tries again and the run continues. The store keeps the
checkpoints that the run directory keeps. The outcome is uploaded last, after the exported models.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import IO

from contract import lease
from contract.exit_codes import ExitCode
from contract.files.plain_files import NotPlainError, open_plain
from contract.manifest import (
    LEFT,
    MANIFEST,
    WrittenFile,
    checkpoint_path,
    files_in,
    is_deleted,
    lineage_of,
    listing,
    newest_checkpoint,
    steps_on_disk,
)
from contract.options import ended
from contract.run_dir import RunFiles
from entrypoint.net import wait
from entrypoint.run import errors, object_store_files, restore
from entrypoint.run.journal import Journal
from entrypoint.run.object_store import Store, StoreError, Transfers, checkpoint_name
from entrypoint.run.object_store_files import Segments
from entrypoint.run.restore import Ownership, TakenOverError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks for a new checkpoint."""
LONGEST_PAUSE_SECONDS = 30.0
"""Between two tries while the store does not answer."""
OUTAGE_SECONDS = 3600.0
"""After so long without the store, the newest checkpoint is looked up again."""


class Uploads:
    """The thread, from the start of a `with` block to `finish`."""

    def __init__(self, store: Store, run: RunFiles, journal: Journal) -> None:
        self._store = store
        self._run = run
        self._journal = journal
        self._over = threading.Event()
        """The run is over: what is there now is uploaded, and then the thread ends."""
        self._given_up = threading.Event()
        self._complete = False
        """All that the run left is in the store."""
        self._handled: bytes | None = None
        """The manifest of the newest checkpoint that is in the store, or is corrupt."""
        self._outage = False
        holder = journal.claim.holder if journal.claim else ""
        self._ownership = Ownership(store, run, holder)
        self._segments = {name: Segments(store, name) for name in restore.GROWING}
        self._files = FileUploads(store, run.root, self._ownership)
        self.taken_over: Future[str] = Future()
        """Says in a sentence that a later head uses the store."""
        self._thread = threading.Thread(target=self._work, name="upload", daemon=True)

    def __enter__(self) -> Uploads:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._given_up.set()

    def finish(self, stop: threading.Event, *, grace: float, patience: float) -> bool:
        """Wait until all is uploaded, and return whether it is.

        Give up after `patience` seconds in which the store takes no part of a file. Once `stop` is
        set, wait at most `grace` seconds more.
        """
        self._over.set()
        self._files.moved, until = time.monotonic(), math.inf
        while self._thread.is_alive():
            now = time.monotonic()
            if stop.is_set():
                until = min(until, now + grace)
            if now > until or now - self._files.moved > patience:
                self._given_up.set()
                self._record(
                    "upload-failed",
                    f"The uploads to {self._store.url} are incomplete. Start the head again with "
                    "this run directory: it uploads the rest.",
                    ended=True,
                )
                return False
            self._thread.join(LOOK_SECONDS / 4)
        return self._complete

    def _work(self) -> None:
        try:
            while not self._over.wait(LOOK_SECONDS):
                self._until_done(self._upload_checkpoint)
            done = self._until_done(self._upload_checkpoint)
            self._complete = self._until_done(self._upload_results) and done
        except (TakenOverError, restore.OtherRunError) as error:
            self._record("upload-failed", f"Nothing more is uploaded: {error}.", ended=True)
            if isinstance(error, TakenOverError):
                self.taken_over.set_result(str(error))
        except wait.InterruptedWaitError:
            return
        except Exception:  # the run continues
            log.exception("nothing more is uploaded to %s", self._store.url)

    def _until_done(self, upload: Callable[[], None]) -> bool:
        """Try until the store has taken all, and return whether it has.

        An outage is recorded once, also if the run directory cannot be read.
        """

        def probe() -> None:
            try:
                upload()
            except (StoreError, OSError) as error:
                why = errors.describe(error) if isinstance(error, OSError) else str(error)
                self._tell_outage(why)
                raise wait.NotYetError(why) from None
            self._outage = False

        try:
            wait.until(
                f"{self._store.url} to take the uploads",
                probe,
                timeout=OUTAGE_SECONDS,
                stop=self._given_up,
                longest_pause=LONGEST_PAUSE_SECONDS,
            )
        except wait.GaveUpError as error:
            log.warning("%s", error)
            return False
        return True

    def _tell_outage(self, why: str) -> None:
        if not self._outage:
            self._outage = True
            self._record(
                "upload-failed",
                f"{self._store.url} does not take the uploads: {ended(why)} The run continues; the "
                "uploads are tried again.",
            )

    def _upload_checkpoint(self) -> None:
        """Upload the newest complete checkpoint, unless the store has it."""
        ours = lineage_of(self._run)
        step = newest_checkpoint(self._run.checkpoints, checksums=False, lineage=ours)
        manifest = None if step is None else self._manifest(step)
        is_new = manifest not in (None, self._handled)
        if is_new or self._ownership.is_due:
            self._ownership.take_or_check()
        if step is None or manifest is None or not is_new:
            return
        try:
            self._upload_step(step, manifest)
        except CorruptFileError as error:
            self._record("upload-failed", f"Checkpoint {step} is not uploaded: {error}.", step=step)
        except (FileNotFoundError, ValueError):  # it has been deleted or put aside since
            return
        else:
            self._upload_history()
            self._prune(step)
        self._handled = manifest

    def _manifest(self, step: int) -> bytes | None:
        try:
            return (checkpoint_path(self._run.checkpoints, step) / MANIFEST).read_bytes()
        except FileNotFoundError:
            return None

    def _upload_step(self, step: int, manifest: bytes) -> None:
        """Raises FileNotFoundError, ValueError, CorruptFileError."""
        name, began = f"{checkpoint_name(step)}/{MANIFEST}", time.monotonic()
        theirs = self._store.read(name)
        if theirs == manifest:
            return
        if theirs is not None:  # no manifest may name files that are being replaced
            self._store.delete(step)
        directory = checkpoint_path(self._run.checkpoints, step)
        files = {directory / file.name: file.sha256 for file in files_in(manifest)}
        sent = self._files.upload(files)
        self._ownership.take_or_check()
        self._store.write(name, manifest)
        self._tell_uploaded(step, sum(file.bytes for file in sent), time.monotonic() - began)

    def _upload_history(self, *, last: bool = False) -> None:
        """`last`: the models are uploaded. Before, a finished run does not show as finished.

        Else a new machine would end with "finished", and nothing would have its model.
        """
        paths = [self._run.root / name for name in restore.HISTORY]
        with ExitStack() as opened:
            files = [opened.enter_context(open_plain(path)) for path in paths if path.exists()]
            parts = [Beginning(file, self._files.moves) for file in files]
            is_finished = self._is_finished()
            if last or not is_finished:
                for file, part in zip(files, parts, strict=True):
                    self._upload_part(Path(file.name).name, file, part, whole=is_finished)

    def _upload_part(self, name: str, file: IO[bytes], part: Beginning, *, whole: bool) -> None:
        """`whole`: as one object of its name, also if it is long: for those who read the store."""
        of_segments = self._segments.get(name)
        if of_segments and not whole and part.size > object_store_files.SEGMENT_BYTES:
            of_segments.send(file, part.size, self._files.moves)
            return
        self._store.upload(name, part)
        if of_segments:
            of_segments.is_whole()

    def _is_finished(self) -> bool:
        """Return whether the newest head has recorded that the run has finished."""
        code = None
        for event in self._journal.landmarks("start", "outcome"):
            code = event["details"].get("exit_code") if event["kind"] == "outcome" else None
        return code == ExitCode.FINISHED

    def _upload_results(self) -> None:
        """Upload the exported models and the last state of the history."""
        self._ownership.take_or_check()
        for directory in (self._run.exported, self._run.exported_critic, self._run.best):
            try:
                self._upload_model(directory)
            except CorruptFileError as error:
                self._record(
                    "upload-failed", f"{directory} is not uploaded: {error}.", path=str(directory)
                )
        self._upload_history(last=True)

    def _upload_model(self, directory: Path) -> None:
        """Its manifest comes last: in the store, a model without it is incomplete."""
        files = sorted(
            path for path in directory.rglob("*") if path.is_file() and not is_deleted(path)
        )
        if not files:
            return
        self._store.remove(f"{directory.name}/{MANIFEST}")
        sent = self._files.upload(dict.fromkeys(files, ""))
        below = [replace(file, name=file.name.partition("/")[2]) for file in sent]
        self._store.write(f"{directory.name}/{MANIFEST}", listing(below).encode())

    def _prune(self, newest: int) -> None:
        """Delete from the store what the run directory does not have any more.

        A checkpoint of a later step stays, unless --load_step has passed over it: it may be the
        only good one, if it is corrupt here, or it may come from a head on another machine.
        """
        of = self._run.checkpoints
        here = {
            step for step in steps_on_disk(of) if (checkpoint_path(of, step) / MANIFEST).exists()
        }
        self._ownership.take_or_check()
        for step in self._store.checkpoints().keys() - here - {newest}:
            if step < newest or (checkpoint_path(of, step) / LEFT).exists():
                self._store.delete(step)

    def _tell_uploaded(self, step: int, size: int, seconds: float) -> None:
        self._record(
            "upload",
            f"Checkpoint of step {step} is in {self._store.url}: {size / 1e9:.3f} GB in "
            f"{seconds:.1f} s.",
            step=step,
            bytes=size,
            seconds=round(seconds, 3),
        )

    def _record(self, kind: str, sentence: str, **details: object) -> None:
        try:
            self._journal.record(kind, sentence, **details)
        except lease.SupersededError:  # this head ends, and says so itself
            self._given_up.set()
        except OSError as error:
            log.warning("%s (not in the journal: %s)", sentence, errors.describe(error))


FILES_AT_ONCE = 4
"""Each needs memory for two parts."""


class CorruptFileError(Exception):
    """A file of the run directory is a link, or has another checksum than its manifest gives."""


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
            handles = {path: opened.enter_context(self._opened(path)) for path in files}
            calls = [partial(self._one, path, file, files[path]) for path, file in handles.items()]
            Transfers("upload-file", calls, FILES_AT_ONCE, Event()).ended()
            keys = {path: _key(file) for path, file in handles.items()}
            return [
                WrittenFile(str(path.relative_to(self._root)), key[1], self._sent[key])
                for path, key in keys.items()
            ]

    def _opened(self, path: Path) -> IO[bytes]:
        """The run directory's own entries, such as `hf`, may be links; nothing below them may."""
        below = self._root / path.relative_to(self._root).parts[0]
        try:
            return open_plain(path, below)
        except NotPlainError as error:
            raise CorruptFileError(errors.describe(error)) from None

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
