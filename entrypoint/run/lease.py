"""One head at a time on a run directory, by a lease that survives a crash of its holder.

Each head has a lease file of its own, numbered (contract/lease.py says what the numbers are for),
in which two proofs of its life lie together, since neither is enough on its own:

- an advisory lock (flock): the kernel drops it the moment that the holder dies, but a frozen holder
  keeps it, and some network file systems keep it to one machine;
- a heartbeat: it reaches every machine, but its end takes a while to be sure of.

On the holder's own machine a free lock decides at once. Otherwise a newcomer watches the heartbeat,
by its own clock, for as long as a living holder may be silent. A holder that was only frozen, or
cut off, finds the newcomer's greater number when it wakes up.

A holder whose lease was deleted writes it again. A newcomer that finds events in the journal, and
no lease, gives a living holder the time to do so.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path

from contract import lease as contract_lease
from contract.files import epochs
from contract.files.os_errors import with_path
from contract.journal_file.index import landmarks
from contract.run_dir import RunFiles
from entrypoint.config.durations import SHORTEST_FAILOVER
from entrypoint.run import succession
from entrypoint.run.succession import Holder, Row, Vigil

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.5
SILENCE_SECONDS = SHORTEST_FAILOVER
"""Seconds without a heartbeat after which a holder counts as dead."""
POLL_SECONDS = 0.5


class HeldError(Exception):
    """Another head lives on this run directory; the sentence names it."""


def address(leases: Path) -> str:
    """The address of the head with the newest lease; "" if there is none or it has no address."""
    try:
        newest = contract_lease.newest(leases)
        return (
            str(ip_address(str(contract_lease.read(newest).get("address", "")))) if newest else ""
        )
    except (OSError, ValueError):  # it cannot be read, or is damaged
        return ""


def moved_to(leases: Path) -> str:
    """The address of a head that was a worker before; "" if there is none, or it has ended."""
    try:
        return str(ip_address(succession.leader_after_failover(look(leases)[1])))
    except (OSError, ValueError):
        return ""


def living_url(leases: Path) -> str:
    """The control port's URL of the head that holds the newest lease; "" if none lives."""
    try:
        silent, row = contract_lease.silence(leases), look(leases)[1]
    except OSError:
        return ""
    lives = silent is not None and silent < SILENCE_SECONDS and not row.get("over")
    url = row.get("url")
    is_url = isinstance(url, str) and url.startswith(("http://", "https://"))
    return str(url) if lives and is_url else ""


def has_ended(leases: Path) -> bool:
    """Whether the newest lease's holder has certainly ended: nothing of it listens any more.

    It has said so, or the kernel of this machine, which was the holder's, has dropped its lock.
    """
    try:
        number, row = look(leases)
        if not number or row.get("over"):
            return bool(number)
        if row.get("boot_id") != boot_id():
            return False
        descriptor = os.open(leases / str(number), os.O_RDONLY)
    except OSError:
        return False
    try:  # shared: two that look do not take each other for the holder
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def look(leases: Path) -> tuple[int, Row]:
    """Return number and fields of the newest lease; 0 if there is none. Raises OSError."""
    newest = contract_lease.newest(leases)
    return (int(newest.name), contract_lease.read(newest)) if newest else (0, {})


class Lease:
    """Held from `acquire` to `release`, renewed by a thread of its own."""

    def __init__(
        self,
        leases: Path,
        on_lost: Callable[[str], None] = log.error,
        address: str = "",
        *,
        was_worker: bool = False,
    ) -> None:
        """`on_lost` is called with a sentence when a later head has taken over the run.

        `address`: where workers reach the holder. `was_worker`: the holder takes the place of a
        head that was lost, so the nodes' settings name another address.
        """
        self._leases = leases
        self._address = address
        self._was_worker = was_worker
        self._on_lost = on_lost
        self._descriptor: int | None = None
        self._renewing: threading.Thread | None = None
        self._released = threading.Event()
        self.about: Mapping[str, str] = {}
        """What commands read of the holder: `url` of its control port, as it prints it; where it
        listens, as `control_url`, and the `bind` to which alone; and the `mark`, which is in the
        environment of all that it has started."""
        self.path = leases / "0"
        self.incarnation = uuid.uuid4().hex[:12]
        self._place: os.stat_result | None = None
        """The identity of the run directory when the lease was taken."""

    @property
    def claim(self) -> contract_lease.Claim:
        """The claim with which the holder writes to the run."""
        return contract_lease.Claim(self.path, self.incarnation)

    def acquire(self) -> Lease:
        """Raises HeldError if another head lives, OSError if no file can be written."""
        self._leases.mkdir(exist_ok=True)
        written = landmarks(self._run.journal).epoch()
        previous = contract_lease.newest(self._leases)
        if previous is None and written:
            previous = self._restored(written)
        if previous is None:
            self._take(epochs.next_number(0, written))
            return self
        # Its lock is kept until the new lease is there: a third head must not see both free.
        descriptor = os.open(previous, os.O_RDWR)
        try:
            with with_path(previous):
                lives = self._lives(previous, descriptor)
            if lives:
                raise HeldError(self._sentence(previous))
            self._take(epochs.next_number(int(previous.name), written))
        finally:
            os.close(descriptor)
        return self

    def refuse_living(self) -> None:
        """Raise HeldError if another head keeps the lock and beats. Nothing is written or kept.

        A head whose lock this machine cannot see is found by `acquire` alone. Raises OSError.
        """
        newest = contract_lease.newest(self._leases)
        if newest is None or (first := contract_lease.read(newest)).get("over"):
            return
        deadline = time.monotonic() + 2 * HEARTBEAT_SECONDS
        descriptor = os.open(newest, os.O_RDWR)
        try:
            while time.monotonic() < deadline and not _lock(descriptor):
                if (row := contract_lease.read(newest)) != first:
                    if not row.get("over"):
                        raise HeldError(self._sentence(newest))
                    return
                self._released.wait(POLL_SECONDS)
        finally:
            os.close(descriptor)

    def succeed(self, vigil: Vigil) -> None:
        """Take the lease after the one that was watched, whose holder is silent.

        Raises HeldError if the holder lives after all, or another node is faster; OSError.
        """
        number, row = look(self._leases)
        if not succession.may_succeed(vigil, number, row, time.monotonic(), SILENCE_SECONDS):
            raise HeldError(self._sentence(self._leases / str(number)))
        written = landmarks(self._run.journal).epoch()
        self._take(epochs.next_number(number, written))

    def release(self) -> None:
        if self._descriptor is not None:
            self._released.set()
            if self._renewing is not None:  # its beat must not be the last word
                self._renewing.join(HEARTBEAT_SECONDS)
            self._write({"host": socket.gethostname(), "over": True})
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lease:
        return self if self._descriptor is not None else self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def _run(self) -> RunFiles:
        return RunFiles(self._leases.parent)

    def _restored(self, epoch: int) -> Path | None:
        """If all leases are gone: the lease that a living head writes again."""
        log.warning(
            "%s has no lease, and %s has events of lease %d: watching for a living head",
            self._leases,
            self._run.journal.name,
            epoch,
        )
        deadline = time.monotonic() + SILENCE_SECONDS
        while (
            found := contract_lease.newest(self._leases)
        ) is None and time.monotonic() < deadline:
            self._released.wait(POLL_SECONDS)
        return found

    def _take(self, number: int) -> None:
        self.path = self._leases / str(number)
        try:
            self._descriptor = _created_and_locked(self.path)
        except (FileExistsError, BlockingIOError):
            raise HeldError(self._sentence(self.path)) from None
        self._place = self._leases.parent.stat()
        self._beat(0)
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewing.start()

    def _renew(self) -> None:
        count, said = 0, ""
        while not self._released.wait(HEARTBEAT_SECONDS):
            count += 1
            try:
                contract_lease.refuse_later(self.claim)
                if not self._is_own_file():
                    self._restore()
                self._beat(count)
                said = ""
            except contract_lease.SupersededError as error:
                self._on_lost(str(error))
                return
            except (OSError, TypeError) as error:
                if not self._released.is_set() and str(error) != said:
                    said = str(error)
                    log.warning("the lease %s cannot be renewed: %s", self.path, error)

    def _is_own_file(self) -> bool:
        """Whether the file with the heartbeat is the file that others see."""
        assert self._descriptor is not None
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def _restore(self) -> None:
        """Write the lease again if it was deleted or replaced by a copy.

        Raises SupersededError if another head has the number by now, OSError if the run directory
        is on other storage now.
        """
        if self.path.exists():
            contract_lease.check(self.claim)
            self.path.unlink()
        elif not self._is_our_run():
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self.path))
        self._leases.mkdir(exist_ok=True)
        try:
            fresh = _created_and_locked(self.path)
        except (FileExistsError, BlockingIOError):
            return  # somebody is faster: the next beat finds out who
        assert self._descriptor is not None
        os.dup2(fresh, self._descriptor, inheritable=False)
        os.close(fresh)
        log.warning("the lease %s was deleted: this head, its holder, wrote it again", self.path)

    def _is_our_run(self) -> bool:
        """Whether this is the directory in which the lease was taken, or has its journal."""
        now = self._leases.parent.stat()
        if self._place is not None and os.path.samestat(self._place, now):
            return True
        starts = landmarks(self._run.journal).events(["start"])
        return any(event["details"].get("incarnation") == self.incarnation for event in starts)

    def _beat(self, count: int) -> None:
        self._write(
            {
                "incarnation": self.incarnation,
                "host": socket.gethostname(),
                "address": self._address,
                **self.about,
                "boot_id": boot_id(),
                "beat": count,
                "was_worker": self._was_worker,
            }
        )

    def _write(self, row: dict[str, object]) -> None:
        """In place, not by rename: the lock belongs to the file itself."""
        text = json.dumps(row).encode()
        assert self._descriptor is not None
        with with_path(self.path):
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))
            os.fsync(self._descriptor)

    def _lives(self, lease: Path, descriptor: int) -> bool:
        """Whether the holder lives. A silent holder is watched for as long as it may be silent."""
        vigil = first = self._looked(None, lease)
        while True:
            row = vigil.row
            match succession.holder(vigil, vigil.looked, SILENCE_SECONDS):
                case Holder.OVER:
                    return False
                case _ if row != first.row:
                    return True
                case _ if _lock(descriptor) and row.get("boot_id") == boot_id():
                    return False
                case Holder.SILENT:
                    log.warning("the head on %s that held this run is silent", _host(row))
                    return False
            if vigil is first:
                log.info("a head on %s held this run: watching for its heartbeat", _host(row))
            self._released.wait(POLL_SECONDS)
            vigil = self._looked(vigil, lease)

    def _looked(self, before: Vigil | None, lease: Path) -> Vigil:
        number, row = int(lease.name), contract_lease.read(lease)
        return succession.watched(before, number, row, time.monotonic())

    def _sentence(self, lease: Path) -> str:
        host = contract_lease.read(lease).get("host", "this machine")
        return (
            f"{self._leases.parent} is held by a living head on {host}: "
            "stop that one first, or give this one another ROLLCALL_RUN_DIR; a worker of that head "
            "needs RAY_WORKER=1"
        )


def _host(row: Mapping[str, object]) -> str:
    """The holder's machine; a lease that is damaged does not name it."""
    return str(row.get("host", "an unknown machine"))


def _created_and_locked(path: Path) -> int:
    """A locked descriptor. Raises FileExistsError, BlockingIOError, and OSError on failure."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with with_path(path):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int) -> bool:
    """Take the lock; return whether it is ours now: no living process of this machine holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def boot_id() -> str:
    """The id of the running kernel's boot, the same in all containers of a machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
