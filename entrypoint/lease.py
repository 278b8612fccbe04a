"""One head at a time on a run directory, by a lease that survives a crash of its holder.

Each head has a lease file of its own, numbered (trainer/fence.py says what the numbers are for), in
which two proofs of its life lie together, since neither is enough on its own:

- an advisory lock (flock): the kernel drops it the moment that the holder dies, but a frozen holder
  keeps it, and some network file systems keep it to one machine;
- a heartbeat: it reaches every machine, but its end takes a while to be sure of.

On the holder's own machine a free lock decides at once. Otherwise a newcomer watches the heartbeat,
by its own clock, for as long as a living holder may be silent. A holder that was only frozen, or
cut off, finds the newcomer's greater number when it wakes up.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

from trainer import fence
from trainer.os_errors import named

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.5
SILENCE_SECONDS = 8.0
"""Without a heartbeat for so long, a holder is taken for dead."""
POLL_SECONDS = 0.5


class HeldError(Exception):
    """Another head lives on this run directory; the sentence names it."""


def holder(leases: Path) -> str:
    """The incarnation of the head that has the newest lease there; "" where there is none.

    Who reads a living head's sees the storage that the head writes to.
    """
    return _told(leases, "incarnation")


def address(leases: Path) -> str:
    """Of the head that has the newest lease there; "" where there is none, or it does not say."""
    told = _told(leases, "address")
    try:
        return str(ip_address(told))
    except ValueError:  # a damaged lease's
        return ""


def _told(leases: Path, what: str) -> str:
    try:
        newest = fence.newest(leases)
    except OSError:
        return ""
    return str(fence.read(newest).get(what, "")) if newest else ""


class Lease:
    """Held from `acquire` to `release`, renewed by a thread of its own."""

    def __init__(
        self, leases: Path, on_lost: Callable[[str], None] = log.error, address: str = ""
    ) -> None:
        """`on_lost` is told, in a sentence, that a later head has taken the run over. `address`:
        where workers find the holder."""
        self._leases = leases
        self._address = address
        self._on_lost = on_lost
        self._descriptor: int | None = None
        self._renewing: threading.Thread | None = None
        self._released = threading.Event()
        self.path = leases / "0"
        self.incarnation = uuid.uuid4().hex[:12]

    def acquire(self) -> Lease:
        """Raises HeldError where another head lives, OSError where no file can be written."""
        self._leases.mkdir(exist_ok=True)
        previous = fence.newest(self._leases)
        if previous is None:
            self._take(1)
            return self
        # Its lock is kept until the new lease is there: a third head must not see both free.
        descriptor = os.open(previous, os.O_RDWR)
        try:
            with named(previous):
                lives = self._lives(previous, descriptor)
            if lives:
                raise HeldError(self._sentence(previous))
            self._take(int(previous.name) + 1)
        finally:
            os.close(descriptor)
        return self

    def release(self) -> None:
        if self._descriptor is not None:
            self._released.set()
            if self._renewing is not None:  # its beat must not be the last word
                self._renewing.join(HEARTBEAT_SECONDS)
            self._write({"host": socket.gethostname(), "over": True})
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lease:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _take(self, number: int) -> None:
        self.path = self._leases / str(number)
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            with named(self.path):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileExistsError, BlockingIOError):
            raise HeldError(self._sentence(self.path)) from None
        self._beat(0)
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewing.start()

    def _renew(self) -> None:
        count = 0
        while not self._released.wait(HEARTBEAT_SECONDS):
            count += 1
            try:
                fence.check(self.path)
                self._beat(count)
            except fence.SupersededError as error:
                self._on_lost(str(error))
                return
            except (OSError, TypeError) as error:
                if not self._released.is_set():
                    log.warning("the lease %s cannot be renewed: %s", self.path, error)

    def _beat(self, count: int) -> None:
        self._write(
            {
                "incarnation": self.incarnation,
                "host": socket.gethostname(),
                "address": self._address,
                "boot_id": _boot_id(),
                "beat": count,
            }
        )

    def _write(self, row: dict[str, object]) -> None:
        """In place, not by rename: the lock belongs to the file itself."""
        text = json.dumps(row).encode()
        assert self._descriptor is not None
        with named(self.path):
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))
            os.fsync(self._descriptor)

    def _lives(self, lease: Path, descriptor: int) -> bool:
        """Whether its holder does; a silent one is watched for as long as one may be silent."""
        before = fence.read(lease)
        deadline = time.monotonic() + SILENCE_SECONDS
        said = False
        while True:
            row = fence.read(lease)
            if row.get("over"):
                return False
            if row != before:
                return True
            if _lock(descriptor) and row.get("boot_id") == _boot_id():
                return False
            if time.monotonic() > deadline:
                log.warning("the head on %s that held this run is silent", row.get("host"))
                return False
            if not said:
                log.info("a head on %s held this run: watching for its heartbeat", row.get("host"))
                said = True
            self._released.wait(POLL_SECONDS)

    def _sentence(self, lease: Path) -> str:
        host = fence.read(lease).get("host", "this machine")
        return (
            f"{self._leases.parent} is held by a living head on {host}: "
            "stop that one first, or give this one another ROLLCALL_RUN_DIR"
        )


def _lock(descriptor: int) -> bool:
    """Whether the lock is ours now: nobody living on this machine has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _boot_id() -> str:
    """One value for a running kernel, hence for all containers of one machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
