"""One head at a time on a run directory, by a lease that survives a crash of its holder.

Two proofs of life together, since neither is enough on its own:

- an advisory lock (flock): the kernel drops it the moment that the holder dies, but some network
  file systems keep it to one machine;
- a heartbeat in the file: it reaches every machine, but its end takes a while to be sure of.

On the holder's own machine the lock decides at once. From another machine a newcomer also watches
the heartbeat, by its own clock, for as long as a living holder may be silent.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import threading
import uuid
from pathlib import Path
from types import TracebackType

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.5
SILENCE_SECONDS = 8.0
"""Without a heartbeat for so long, a holder on another machine is taken for dead."""


class HeldError(Exception):
    """Another head lives on this run directory; the sentence names it."""


def holder(path: Path) -> str:
    """The incarnation of the head whose lease lies there; "" where none can be read.

    Who reads a living head's sees the storage that the head writes to.
    """
    try:
        list(os.scandir(path.parent))  # so that a network file system looks again
        return str(json.loads(path.read_text())["incarnation"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


class Lease:
    """Held from `acquire` to `release`, renewed by a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._released = threading.Event()
        self.incarnation = uuid.uuid4().hex[:12]

    def acquire(self) -> Lease:
        """Raises HeldError where another head lives, OSError where the file cannot be written."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise HeldError(self._sentence(self._read())) from None
        previous = self._read()
        if previous.get("boot_id") not in (None, _boot_id()) and self._beats(previous):
            os.close(descriptor)
            raise HeldError(self._sentence(previous))
        self._descriptor = descriptor
        self._beat(0)
        threading.Thread(target=self._renew, name="lease", daemon=True).start()
        return self

    def release(self) -> None:
        if self._descriptor is not None:
            self._released.set()
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lease:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _renew(self) -> None:
        count = 0
        while not self._released.wait(HEARTBEAT_SECONDS):
            count += 1
            try:
                self._beat(count)
            except (OSError, TypeError) as error:
                if not self._released.is_set():
                    log.warning("the lease on %s cannot be renewed: %s", self._path, error)

    def _beat(self, count: int) -> None:
        """In place, not by rename: the lock belongs to the file itself."""
        row = {
            "incarnation": self.incarnation,
            "host": socket.gethostname(),
            "boot_id": _boot_id(),
            "beat": count,
        }
        text = json.dumps(row).encode()
        assert self._descriptor is not None
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))
        os.fsync(self._descriptor)

    def _beats(self, previous: dict[str, object]) -> bool:
        """Whether the holder that wrote `previous` is still writing."""
        log.info("a head on %s held this run: watching for its heartbeat", previous.get("host"))
        waited = 0.0
        while waited < SILENCE_SECONDS:
            if self._read() != previous:
                return True
            self._released.wait(0.5)
            waited += 0.5
        return False

    def _read(self) -> dict[str, object]:
        try:
            row = json.loads(self._path.read_text() or "{}")
        except (OSError, ValueError):
            return {}
        return row if isinstance(row, dict) else {}

    def _sentence(self, holder: dict[str, object]) -> str:
        host = holder.get("host", "this machine")
        return (
            f"{self._path.parent} is held by a living head on {host}: "
            "stop that one first, or give this one another ROLLCALL_RUN_DIR"
        )


def _boot_id() -> str:
    """One value for a running kernel, hence for all containers of one machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
