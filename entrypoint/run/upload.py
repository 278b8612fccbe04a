"""Uploads complete checkpoints to the store of ROLLCALL_STORAGE, from a thread of the head.

The thread looks at the run directory; the trainer knows nothing of it, and no step waits for it.
All files of a checkpoint are opened first, so that its deletion does not end the upload. Its
manifest is uploaded last. While the store does not answer, the thread tries again and the run
continues. The store keeps the checkpoints that the run directory keeps.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from contract import lease
from contract.manifest import MANIFEST, checkpoint_path, files_of, newest_checkpoint, steps_on_disk
from contract.run_dir import RunFiles
from entrypoint.net import wait
from entrypoint.run import errors, restore
from entrypoint.run.journal import Journal
from entrypoint.run.store import Store, StoreError, checkpoint_name

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks for a new checkpoint."""
LONGEST_PAUSE_SECONDS = 30.0
"""Between two tries while the store does not answer."""
OUTAGE_SECONDS = 3600.0
"""After so long without the store, the newest checkpoint is looked up again."""
OWNER = ".owner"
"""Names the head that came to the store last; the uploads of any other head end."""


class TakenOverError(Exception):
    """A later head uploads to the store; the sentence says so."""


class Uploads:
    """The thread, from the start of a `with` block to `finish`."""

    def __init__(self, store: Store, run: RunFiles, journal: Journal) -> None:
        self._store = store
        self._run = run
        self._journal = journal
        self._over = threading.Event()
        """The run is over: what is there now is uploaded, and then the thread ends."""
        self._given_up = threading.Event()
        self._uploaded: int | None = None
        """The step of the newest checkpoint that is in the store."""
        self._sent: set[tuple[int, int, int]] = set()
        """Inode, size and time of files that this head has uploaded: a retry leaves them out."""
        self._moved = time.monotonic()
        """When bytes were last taken from a file."""
        self._outage = False
        self._owns = False
        """This head has written its name to the store."""
        self._thread = threading.Thread(target=self._work, name="upload", daemon=True)

    def __enter__(self) -> Uploads:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._given_up.set()

    def finish(self, stop: threading.Event, *, grace: float, patience: float) -> None:
        """Wait until all is uploaded; give up after `patience` seconds in which no byte moves.

        Once `stop` is set, wait at most `grace` seconds more.
        """
        self._over.set()
        self._moved, until = time.monotonic(), math.inf
        while self._thread.is_alive():
            now = time.monotonic()
            if stop.is_set():
                until = min(until, now + grace)
            if now > until or now - self._moved > patience:
                self._given_up.set()
                self._record("upload-failed", f"The uploads to {self._store.url} are incomplete.")
                return
            self._thread.join(LOOK_SECONDS / 4)

    def _work(self) -> None:
        try:
            while not self._over.wait(LOOK_SECONDS):
                self._until_done(self._upload_checkpoint)
            self._until_done(self._upload_checkpoint)
            self._until_done(self._upload_results)
        except (TakenOverError, restore.OtherRunError) as error:
            self._record("upload-failed", f"Nothing more is uploaded: {error}.")
        except wait.InterruptedWaitError:
            return
        except Exception:  # the run continues
            log.exception("nothing more is uploaded to %s", self._store.url)

    def _until_done(self, upload: Callable[[], None]) -> None:
        """Try until the store has taken all; an outage is recorded once."""

        def probe() -> None:
            try:
                upload()
            except StoreError as error:
                self._tell_outage(error)
                raise wait.NotYetError(str(error)) from None
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

    def _tell_outage(self, error: StoreError) -> None:
        if not self._outage:
            self._outage = True
            self._record(
                "upload-failed",
                f"{self._store.url} does not take the uploads: {error}. The run continues; the "
                "uploads are tried again.",
            )

    def _take_or_check(self) -> None:
        """Raises OtherRunError, and TakenOverError if another head has come to the store since."""
        mine = self._journal.claim.holder if self._journal.claim else ""
        if not self._owns:
            restore.claim(self._store, self._run)
            self._store.write(OWNER, mine.encode())
            self._owns = True
        elif self._store.read(OWNER) != mine.encode():
            raise TakenOverError(f"a later head uses {self._store.url}")

    def _upload_checkpoint(self) -> None:
        """Upload the newest complete checkpoint, unless the store has it."""
        step = newest_checkpoint(self._run.checkpoints, checksums=False)
        if self._owns and step in (None, self._uploaded):
            return
        self._take_or_check()
        if step is None:
            return
        began, directory = time.monotonic(), checkpoint_path(self._run.checkpoints, step)
        try:
            manifest = (directory / MANIFEST).read_bytes()
            paths = [directory / file.name for file in files_of(directory)]
            if manifest != self._store.read(f"{checkpoint_name(step)}/{MANIFEST}"):
                size = self._upload_files(paths)
                self._store.write(f"{checkpoint_name(step)}/{MANIFEST}", manifest)
                self._tell_uploaded(step, size, time.monotonic() - began)
        except (FileNotFoundError, ValueError):  # it has been deleted or put aside since
            return
        self._uploaded = step
        self._upload_history()
        self._prune(step)

    def _upload_files(self, paths: list[Path]) -> int:
        """Upload files of the run directory; return their bytes. Raises FileNotFoundError."""
        with ExitStack() as opened:
            files = [(path, opened.enter_context(path.open("rb"))) for path in paths]
            for path, file in files:
                found = os.fstat(file.fileno())
                key = (found.st_ino, found.st_size, found.st_mtime_ns)
                if key not in self._sent:
                    name = str(path.relative_to(self._run.root))
                    self._store.upload(name, _Watched(file, self._moves))
                    self._sent.add(key)
            return sum(os.fstat(file.fileno()).st_size for _, file in files)

    def _moves(self) -> None:
        self._moved = time.monotonic()

    def _upload_history(self) -> None:
        for name in restore.HISTORY:
            path = self._run.root / name
            if path.exists():
                self._store.write(name, path.read_bytes())

    def _upload_results(self) -> None:
        """Upload the exported models and the last state of the history."""
        self._take_or_check()
        for directory in (self._run.exported, self._run.best):
            self._upload_files(sorted(path for path in directory.rglob("*") if path.is_file()))
        self._upload_history()

    def _prune(self, newest: int) -> None:
        """Delete from the store what the run directory does not have any more."""
        of = self._run.checkpoints
        here = {
            step for step in steps_on_disk(of) if (checkpoint_path(of, step) / MANIFEST).exists()
        }
        for step in self._store.checkpoints().keys() - here - {newest}:
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


class _Watched:
    """A file that reports each read."""

    def __init__(self, file: IO[bytes], moves: Callable[[], None]) -> None:
        self._file = file
        self._moves = moves

    def read(self, size: int = -1, /) -> bytes:
        self._moves()
        return self._file.read(size)
