"""Looks at this node's parts once a minute while a run goes on, and tells what is worse."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from entrypoint.cluster.client import DeclinedError
from entrypoint.cluster.trust import WrongTokenError
from entrypoint.config.settings import Settings
from entrypoint.machine import sample
from entrypoint.machine.gpus import discover
from entrypoint.machine.gpus.protocol import GpuError
from entrypoint.machine.kernel_log import KernelLog
from entrypoint.machine.sample import Sample
from entrypoint.machine.view import THIS_MACHINE, Machine
from entrypoint.net import wait
from entrypoint.preflight import changes, gpu_driver
from entrypoint.preflight.changes import Change, HealthKind

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
"""Without GPUs, a look takes 0.3 ms of a CPU."""

Tell = Callable[[Sequence[Change]], None]
"""Tells the head. Raises NotYetError if it does not answer."""


@dataclass(slots=True)
class HealthWatch:
    settings: Settings
    machine: Machine = THIS_MACHINE
    every: float = LOOK_SECONDS
    _tell: Tell | None = None
    _known: dict[tuple[HealthKind, str], Change] = field(default_factory=dict)
    """What was found so far: of each kind and part the first."""
    _told: set[tuple[HealthKind, str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look from a thread until the block ends: a driver may hang."""
        stop = threading.Event()
        threading.Thread(target=self._watch, args=(stop,), name="health", daemon=True).start()
        try:
            yield
        finally:
            stop.set()

    @contextmanager
    def telling(self, tell: Tell) -> Iterator[None]:
        """Tell this head all that is known, and what comes, until the block ends."""
        with self._lock:
            self._tell = tell
            self._told.clear()
        try:
            yield
        finally:
            with self._lock:
                self._tell = None

    def _watch(self, stop: threading.Event) -> None:
        with ExitStack() as held:
            kernel = self._kernel_log(held)
            before = self._sample()
            while not stop.wait(self.every):
                now = self._sample()
                found = changes.changes(before, now)
                if kernel is not None:
                    is_ours = gpu_driver.is_ours(self.settings, self.machine)
                    found += changes.of_kernel(kernel.read(), is_ours)
                before = now
                for one in found:
                    self._known.setdefault((one.kind, one.part), one)
                self.send()

    def _kernel_log(self, held: ExitStack) -> KernelLog | None:
        """Return the log at its end; None if it cannot be read here, as in most containers."""
        if discover.why_none(self.settings, self.machine) or discover.is_amd(self.machine):
            return None
        try:
            kernel = held.enter_context(KernelLog(self.machine.dev / "kmsg"))
            kernel.read()
        except OSError:
            return None
        return kernel

    def _sample(self) -> Sample:
        sys, proc = self.machine.sys, self.machine.proc
        try:
            with discover.opened(self.settings, self.machine) as gpus:
                return sample.taken(() if isinstance(gpus, str) else gpus, sys, proc)
        except GpuError as error:
            return sample.taken([error], sys, proc)

    def send(self) -> None:
        """Tell the head what it has not heard."""
        with self._lock:
            tell, new = self._tell, [k for k in self._known if k not in self._told]
        if tell is None or not new:
            return
        try:
            tell([self._known[key] for key in new])
        except (wait.NotYetError, WrongTokenError, DeclinedError) as error:
            log.debug("the head does not hear of this node's health: %s", error)
            return
        with self._lock:
            self._told.update(new)
