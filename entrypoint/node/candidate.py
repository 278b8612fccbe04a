"""A worker whose head does not answer: it watches the lease, and may take the head's place."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from contract.durations import duration
from contract.files.fd_store import FdStore
from contract.options import ConfigError
from contract.redaction import redact
from contract.run_dir import RunFiles
from entrypoint.config.durations import NEVER
from entrypoint.config.role import Head
from entrypoint.config.settings import Secret, Settings
from entrypoint.job.recipes import base as recipes
from entrypoint.machine import address
from entrypoint.net import sockets
from entrypoint.node import head, heritage, lost_processes
from entrypoint.node.heritage import Heritage, Succession
from entrypoint.processes.inbox import Inbox
from entrypoint.run import candidacy, errors, lease, succession
from entrypoint.run.lease import HeldError, Lease
from entrypoint.run.succession import Holder, Vigil

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval between looks at the lease of a head that does not answer."""


class TookOverError(Exception):
    """This worker has the lease now, and is to lead."""

    def __init__(self, settings: Settings, role: Head, lease: Lease) -> None:
        super().__init__(lease.path)
        self.settings, self.role, self.lease = settings, role, lease

    def succession(self, memory: FdStore, token: str) -> Succession:
        """Return all that the worker brings to its new role.

        `token`: the run's, which may have been replaced since this node started.
        """
        settings = self.settings
        if settings.token is not None:
            settings = replace(settings, token=Secret(token))
        return Succession(settings, self.role, self.lease, memory)


@dataclass(slots=True)
class LeaseWatch:
    """Looks at the newest lease in a thread of its own, since storage may keep it waiting."""

    leases: Path
    node: str = ""
    """This worker's name, if it may lead."""
    says: str | None = None
    """What it says of a silent head's place: "" that it waits, or why it cannot take it."""
    _vigil: Vigil | None = field(init=False, default=None)
    _over: threading.Event | None = field(init=False, default=None)
    """Ends the thread that looks; None if there is none."""
    _changing: threading.Lock = field(init=False, default_factory=threading.Lock)

    def begin(self, tell_later: Callable[[], None] = lambda: None) -> None:
        """Begin to look, unless it looks already.

        `tell_later` is called once if another head makes a lease while this watch lasts.
        """
        with self._changing:
            if self._over is None:
                self._over, self._vigil = threading.Event(), None
                args = (self._over, tell_later)
                threading.Thread(
                    target=self._look, args=args, name="lease-watch", daemon=True
                ).start()

    def end(self) -> None:
        with self._changing:
            if self._over is not None:
                self._over.set()
            self._over = self._vigil = None

    def heard(self) -> None:
        """Note that the head has answered."""
        with self._changing:
            if self._vigil is not None:
                self._vigil = succession.heard(self._vigil, time.monotonic())

    def vacancy(self) -> Vigil | None:
        """Return the vigil if the holder of the lease is silent."""
        vigil = self._vigil
        if vigil is None:
            return None
        says = succession.holder(vigil, vigil.looked, lease.SILENCE_SECONDS)
        return vigil if says is Holder.SILENT else None

    def _look(self, over: threading.Event, tell_later: Callable[[], None]) -> None:
        first = 0
        told: tuple[float, str] | None = None
        while True:
            try:
                number, row = lease.look(self.leases)
            except OSError:  # the next look begins the watch anew, if it comes late
                pass
            else:
                with self._changing:
                    if over.is_set():
                        return
                    self._vigil = succession.watched(self._vigil, number, row, time.monotonic())
                first = first or number
                if number > first > 0:
                    first = number
                    tell_later()
                told = self._tell(told)
            if over.wait(LOOK_SECONDS):
                return

    def _tell(self, told: tuple[float, str] | None) -> tuple[float, str] | None:
        """Write what this worker says, if that is new; return when it last did, and what."""
        now, says = time.monotonic(), self.says
        if not self.node or says is None or self.vacancy() is None:
            return None
        if told and told[1] == says and now - told[0] < candidacy.EVERY_SECONDS:
            return told
        candidacy.tell(self.leases, self.node, says)
        return now, says


@dataclass(slots=True)
class Candidate:
    """Knows what the head has told this worker, and stands when the lease is free."""

    settings: Settings
    inbox: Inbox
    watch: LeaseWatch = field(init=False)
    _heritage: Heritage | None = field(init=False, default=None)
    _address: str = field(init=False, default="")
    _said: str = field(init=False, default="")
    """The last warning that this worker cannot lead now."""

    def __post_init__(self) -> None:
        self.watch = LeaseWatch(RunFiles(self.settings.run_dir).leases, self.settings.node_name)

    def accepted(self, told: Heritage | None, address: str) -> None:
        """Note that a head has accepted this node at `address`, and what it told."""
        self.watch.end()
        refuses = self.settings.variable("head_failover")
        if refuses and self.settings.head_failover == NEVER:
            told = None
        self._heritage, self._address = told, address
        self.watch.says = f"{refuses} is off there" if refuses and told is None else ""

    def stand(self) -> None:
        """Raises TookOverError if the head is lost, and this worker is the one to take its place.

        A worker that cannot lead the run says why, once.
        """
        vigil = self.watch.vacancy()
        if vigil is None or self._heritage is None:
            return None
        if vigil.looked - vigil.since < (patience := self._heritage.patience):
            return self._say(
                f"the head is silent: a worker takes its place after {duration(patience)} of "
                "silence (ROLLCALL_HEAD_FAILOVER)"
            )
        try:
            settings, role = heritage.heir(self.settings, self._heritage, self._address)
            if why := _unfit(settings):
                return self._withdraw(why)
            if (why := _taken_port(settings)) and (ended := lost_processes.end(vigil.row)):
                log.warning("what the lost head had left on this machine is ended: %d", ended)
                why = _taken_port(settings)
            if why:
                self.watch.says = self._masked(why)
                return self._say(f"this worker cannot take the head's place now: {why}")
            own = Lease(
                self.watch.leases,
                lambda why: head.give_way(settings, own, self.inbox, why),
                self._address,
                was_worker=True,
            )
            own.succeed(vigil)
        except ConfigError as error:
            return self._withdraw(str(error))
        except HeldError:
            self.watch.says = ""
            log.info("the head lives after all, or another worker has taken its place")
            return None
        except OSError as error:
            self.watch.says = self._masked(errors.describe(error))
            return self._say(f"this worker cannot take the head's place: {errors.describe(error)}")
        self.watch.end()
        raise TookOverError(settings, role, own)

    def _say(self, why: str) -> None:
        """Log once what may end by itself: this worker looks again."""
        if why != self._said:
            self._said = why
            log.warning("%s", why)

    def _masked(self, why: str) -> str:
        """Return a reason in one line, for the run directory."""
        return " ".join(redact(why, self.settings.secrets).split())

    def _withdraw(self, why: str) -> None:
        log.warning("the head is lost, and this worker cannot take its place: %s", why)
        self._heritage, self.watch.says = None, self._masked(why)


def _unfit(settings: Settings) -> str:
    """Return why this node cannot lead the run; "" if nothing speaks against it."""
    if not settings.waits_for_jobs and (faults := recipes.load(settings.recipe).faults(settings)):
        return "; ".join(faults)
    return ""


def _taken_port(settings: Settings) -> str:
    """Return which port of a head is another program's now; "" if none is.

    It may be that of another worker, which has not noticed yet that the head is lost.
    """
    bound = {settings.control_port: address.bound(settings)}
    for port in (settings.control_port, settings.ray_port, settings.dashboard_port):
        try:
            sockets.listen(port, bound.get(port, "")).close()
        except OSError as error:
            return f"port {port} cannot be listened on ({error.strerror})"
    return ""
