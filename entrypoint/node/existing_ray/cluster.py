"""A Ray cluster that exists already, in place of the head's own Ray.

Its living nodes are the roll: Ray says which there are, and each is examined before it counts. Ray
is never started or stopped here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from contract.background import in_background
from contract.durations import duration
from contract.options import ConfigError, Fault
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.config.settings import Settings
from entrypoint.job.existing_ray_jobs import ExistingRayJobs
from entrypoint.job.ray_jobs import JobClient
from entrypoint.net import wait
from entrypoint.node import ray_state
from entrypoint.node.existing_ray.collect_node_reports import collect_node_reports
from entrypoint.node.existing_ray.ray_roll import RayRoll
from entrypoint.node.journal_observer import JournalObserver
from entrypoint.node.ray_state import Alive
from entrypoint.processes.inbox import ENDED, Inbox, RayEnded, UnfitRayError
from entrypoint.run.journal import Journal

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval between two questions to Ray for its nodes."""
SILENT_NODE_TIMEOUTS = 2.0
"""Multiple of ROLLCALL_NODE_TIMEOUT after which a Ray that does not answer counts as ended."""


TOKEN_FILE = Path("~/.ray/auth_token")


def token_of_ray(settings: Settings) -> str:
    """The token of a Ray that this node did not start; "" if its RAY_AUTH_MODE is not `token`.

    Raises ConfigError if Ray has one and its variables give none.
    """
    environ = settings.environ
    if environ.get("RAY_AUTH_MODE", "").strip().lower() != "token":
        return ""
    if token := environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    named = environ.get("RAY_AUTH_TOKEN_PATH", "").strip()
    path = Path(named or TOKEN_FILE).expanduser()
    try:
        token = path.read_text().strip()
        why = "" if token else "is empty"
    except (OSError, ValueError) as error:
        token, why = "", f"cannot be read ({getattr(error, 'strerror', None) or 'no text'})"
    if not token:
        remedy = "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that has the token"
        problem = f"asks for Ray's token, and {path} {why}"
        raise ConfigError([Fault("RAY_AUTH_MODE", "token", problem, remedy)])
    return token


@dataclass(slots=True)
class ExistingRay:
    """Stands where `HeadRay` does. If Ray ends, the inbox receives RayEnded."""

    settings: Settings
    journal: Journal
    registry: NodeRegistry
    inbox: Inbox
    remedy: str = "waiting until it is there again"
    """What follows after Ray has ended, in words."""
    _token: str = field(init=False)
    _jobs: ExistingRayJobs = field(init=False)
    _roll: RayRoll = field(init=False)
    _answered_at: float = 0.0
    _ended: bool = False
    _pending: Future[dict[str, NodeInfo]] | None = None
    """What nodes that are examined now say of themselves."""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._token = token_of_ray(self.settings)
        self._jobs = ExistingRayJobs(self.dashboard, self._token, self.settings)
        observer = JournalObserver(self.journal, self.inbox, self)
        self._roll = RayRoll(self.settings, self.registry, observer, self.inbox.stop)

    @property
    def dashboard(self) -> str:
        assert self.settings.ray_address is not None
        return self.settings.ray_address

    def jobs(self, _: Settings) -> JobClient:
        """Ray's jobs, for the one run beside this Ray."""
        return self._jobs

    def environment(self) -> dict[str, str]:
        """The environment of services beside the job."""
        return dict(self.settings.environ)

    def __enter__(self) -> ExistingRay:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave Ray as it is, without this run's job."""
        self._stop_watching()
        self._jobs.end_own()

    def wait_ready(self) -> None:
        """Wait until Ray answers, and examine its nodes. Then their coming and going is watched.

        Raises UnfitRayError, GaveUpError and InterruptedWaitError.
        """
        self._until(
            "the Ray cluster", partial(ray_state.check_version, self.dashboard, self._token)
        )
        attempts = self.journal.landmarks("attempt")
        if earlier := [event["details"].get("submission_id", "") for event in attempts]:
            self._until("Ray's jobs", lambda: self._jobs.end_earlier(earlier, self.inbox.stop))
        self._until("Ray's nodes", self._begin)
        self._over = threading.Event()
        watch, over = self._watch, (self._over,)
        self._thread = threading.Thread(target=watch, args=over, name="watch-ray", daemon=True)
        self._thread.start()

    def alive(self) -> set[str]:
        """The ids of Ray's head and of the living nodes that are on the roll."""
        return {node.id for node in self._living()} & self._roll.admitted()

    def mark_dead(self, name: str, why: str) -> bool:
        """Ray finds out by its own health checks."""
        return False

    def ended(self) -> str:
        return ENDED if self._ended else ""

    def revive(self) -> None:
        """Wait until Ray is there again: this node cannot start it."""
        self._stop_watching()
        self._roll.clear()
        self._ended = False
        self.wait_ready()

    def _until(self, what: str, probe: Callable[[], None]) -> None:
        try:
            timeout, stop = self.settings.head_timeout, self.inbox.stop
            wait.until(f"{what} at {self.dashboard}", probe, timeout=timeout, stop=stop)
        except wait.GaveUpError as error:
            raise wait.GaveUpError(f"{error}: check ROLLCALL_RAY_ADDRESS, and Ray's head") from None

    def _living(self) -> list[Alive]:
        """Raises NotYetError if Ray does not answer."""
        return ray_state.alive_nodes(self.dashboard, self._token)

    def _begin(self) -> None:
        """Examine all living nodes. Raises NotYetError, UnfitRayError, InterruptedWaitError."""
        living = self._living()
        if not any(node.is_head for node in living):
            raise wait.NotYetError("Ray lists no head node")
        self._roll.begin(
            living, collect_node_reports(self._jobs, living, self.settings, self.inbox)
        )
        self._answered_at = time.monotonic()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(LOOK_SECONDS):
            try:
                self._look()
            except Exception:  # the roll must go on
                log.exception("Ray's nodes cannot be looked at")

    def _look(self) -> None:
        """Bring the roll up to what Ray says now."""
        try:
            living = {node.id: node for node in self._living()}
        except wait.NotYetError as silent:
            silence = time.monotonic() - self._answered_at
            if silence > SILENT_NODE_TIMEOUTS * self.settings.node_timeout:
                self._end(
                    f"Ray at {self.dashboard} has not answered for {duration(silence)} ({silent})"
                )
            return
        self._answered_at = time.monotonic()
        if self._roll.head not in living:
            self._end(f"Ray's head at {self.dashboard} is another one than before")
            return
        self._roll.look(living)
        self._examine_new()

    def _end(self, why: str) -> None:
        if not self._ended:
            self._ended = True
            self.inbox.put(RayEnded(1, why))

    def _examine_new(self) -> None:
        """Examine nodes in the background: a check may take long, and a node die meanwhile."""
        if self._pending is None:
            if new := self._roll.unexamined():
                ask = partial(collect_node_reports, self._jobs, new, self.settings, self.inbox)
                self._pending = in_background("examine-nodes", ask)
        elif self._pending.done():
            pending, self._pending = self._pending, None
            try:
                self._roll.take(pending.result())
            except (wait.NotYetError, wait.InterruptedWaitError, UnfitRayError) as error:
                log.warning("%s", error)

    def _stop_watching(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._pending = None
