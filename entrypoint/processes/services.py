"""Servers that a node starts and keeps alive, or only waits for: reward model, retriever."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contract import lease
from contract.run_dir import RunFiles
from entrypoint.config.settings import ServiceOn, Settings
from entrypoint.net import wait
from entrypoint.net.http import status_of
from entrypoint.processes import process
from entrypoint.processes.programs import unshadowed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    name: str
    url: str | None
    """Where the service answers; None if nothing needs to be waited for."""
    command: tuple[str, ...] | None
    """The command that starts the service on this node; None if this node does not start it."""


def specs(settings: Settings, *, is_head: bool) -> list[ServiceSpec]:
    """Pure: the services of this node. A worker has only the services that run on every node."""
    wanted = []
    for name, url, command, on in (
        ("reward", settings.reward_url, settings.reward_command, settings.reward_on),
        ("retriever", settings.retriever_url, settings.retriever_command, settings.retriever_on),
    ):
        starts_here = command if is_head or on is ServiceOn.EVERY else None
        if starts_here or (url and is_head):
            wanted.append(ServiceSpec(name, url, starts_here))
    return wanted


def mark(settings: Settings) -> str:
    """The mark of services. It differs from that of the node's Ray, which services outlive."""
    return f"{settings.node_mark}/service"


class Service:
    """A service. If it has a command, a thread starts it, and restarts it when it ends."""

    def __init__(
        self,
        spec: ServiceSpec,
        *,
        env: Mapping[str, str],
        log_to: Path,
        tell: Callable[[str], None],
    ) -> None:
        """`tell` may raise OSError and SupersededError, as the journal does."""
        self.spec = spec
        self._env = env
        self._log_to = log_to
        self._tell = tell
        self._stopping = threading.Event()
        self._process: process.Process | None = None
        self._keeper = threading.Thread(target=self._keep, name=spec.name, daemon=True)

    def use(self, env: Mapping[str, str]) -> None:
        """Start the server again with this environment, which also later starts have."""
        self._env = env
        if self._process is not None:
            self._process.stop(grace=3.0)

    def start(self) -> None:
        if self.spec.command:
            self._keeper.start()

    def wait_ready(
        self, timeout: float, stop: threading.Event, abort: wait.Abort = wait.wait_on
    ) -> None:
        """Raises GaveUpError if it does not answer in time, and what `abort` raises."""
        if not self.spec.url:
            return
        url = self.spec.url
        what = f"the {self.spec.name} server"
        with wait.limited_by("ROLLCALL_REWARD_TIMEOUT"):
            wait.until(
                what,
                lambda: status_of(url),
                timeout=timeout,
                stop=stop,
                longest_pause=0.3,
                abort=abort,
            )
        log.info("%s answers at %s", what, url)

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None:
            self._process.stop(grace=3.0)

    def _keep(self) -> None:
        assert self.spec.command is not None
        failures = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self._process = process.Process(
                    self.spec.name,
                    unshadowed(self.spec.command),
                    env=self._env,
                    log_to=self._log_to,
                )
                code = self._process.wait()
                ending = f"ended with {code}; its log is {self._log_to}"
            except process.StartError as error:
                ending = str(error)
            except OSError as error:  # of its log
                ending = f"cannot start: {error.filename or self._log_to}: {error.strerror}"
            if self._stopping.is_set():
                return
            failures = wait.failures_in_a_row(failures, time.monotonic() - started)
            pause = wait.backoff(failures)
            sentence = f"the {self.spec.name} server {ending}; starting it again in {pause:.1f} s"
            try:
                self._tell(sentence)
            except lease.SupersededError:  # this head ends, and says so itself
                return
            except OSError as error:
                log.warning("%s (not in the journal: %s)", sentence, error.strerror or error)
            self._stopping.wait(pause)


class Services:
    """All services of a node, from the start of a `with` block to its end."""

    def __init__(
        self,
        settings: Settings,
        *,
        is_head: bool,
        env: Mapping[str, str],
        tell: Callable[..., None],
    ) -> None:
        """`tell` takes a sentence, and the name of its service as `service`."""
        self._timeout = settings.service_timeout
        self._mark = mark(settings)
        env = {**env, **process.marks(self._mark)}
        logs = RunFiles(settings.run_dir).logs
        suffix = "" if is_head else f"-{settings.node_name}"
        self._services = [
            Service(
                spec,
                env=env,
                log_to=logs / f"{spec.name}{suffix}.log",
                tell=partial(tell, service=spec.name),
            )
            for spec in specs(settings, is_head=is_head)
        ]

    def use(self, env: Mapping[str, str]) -> None:
        """Start all servers again with another environment, as with another key."""
        for service in self._services:
            service.use({**env, **process.marks(self._mark)})

    def __enter__(self) -> Services:
        of_earlier_life = process.find_ours_or_orphaned(self._mark)
        process.end(of_earlier_life, grace=1.0)
        for service in self._services:
            service.start()
        return self

    def __exit__(self, *_: object) -> None:
        for service in self._services:
            service.stop()

    def wait_ready(self, stop: threading.Event, abort: wait.Abort = wait.wait_on) -> None:
        """Wait for all that this node starts or needs. Raises as `Service.wait_ready`."""
        for service in self._services:
            service.wait_ready(self._timeout, stop, abort)
