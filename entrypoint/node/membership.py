"""A worker's membership of the cluster: check in, join Ray, stay; and again if it is lost."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.cluster.client import (
    CheckedIn,
    ControlClient,
    HeadFailedError,
    NotNowError,
    RefusedError,
)
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.storage_proof import StorageProof
from entrypoint.cluster.trust import UntrustedError, WrongTokenError, trust_of
from entrypoint.config.role import Sourced, head_address
from entrypoint.config.settings import Settings
from entrypoint.machine import address as address_of
from entrypoint.machine import oom_kills
from entrypoint.machine.gpus.use import GpuUse
from entrypoint.machine.inventory import collective_variables, inventory, versions
from entrypoint.net import sockets, wait
from entrypoint.node import (
    leftover_cleanup,
    log_shipper,
    ray_command_line,
    ray_node,
    spare_check,
    unfit_report,
)
from entrypoint.node.candidate import Candidate
from entrypoint.node.find_head import HeadLocator
from entrypoint.node.health_watch import HealthWatch
from entrypoint.node.log_shipper import OwnLogs
from entrypoint.node.ray_node import RayNode
from entrypoint.node.way_in import WayIn, through
from entrypoint.preflight.run import examined_whole
from entrypoint.processes import stacks
from entrypoint.processes.inbox import (
    HeadLost,
    HeadSaid,
    Inbox,
    JobOver,
    JoinAgain,
    Message,
    RayEnded,
    RayFailedError,
    SpareTold,
    SpareUnfit,
    StacksAsked,
    StopAsked,
)
from entrypoint.processes.services import Services
from entrypoint.run import errors
from entrypoint.run import token as run_token
from entrypoint.run.tls import files as tls_files

log = logging.getLogger(__name__)
T = TypeVar("T")

LIFE = uuid.uuid4().hex
"""Identifies this process."""
TRIES = 5
"""After this many failures of Ray in a row, the worker gives up."""
ANSWERED = (NotNowError, HeadFailedError, RefusedError, WrongTokenError)
"""What a head has said that does not accept this node: it lives."""
LONGEST_PAUSE_SECONDS = 0.3
"""Longest pause between polls for the head; it delays the worker's Ray by at most as much."""


def _head(settings: Settings) -> Sourced:
    head = head_address(settings)
    assert head is not None  # decide() makes no worker without one
    return head


class _OverError(Exception):
    """The membership ended before Ray on this node was ready; `message` says why."""

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.message = message


@dataclass(slots=True)
class Membership:
    """Joins the cluster, and joins again whenever the head or this node's Ray is lost."""

    settings: Settings
    findings: Mapping[str, str]
    """As in NodeInfo."""
    token: str
    inbox: Inbox
    services: Services
    locator: HeadLocator = field(init=False)
    candidate: Candidate = field(init=False)
    ray_token: str = field(init=False)
    """The token of the head's Ray, which stays as it is while Ray runs."""
    gpus: Sequence[GpuUse] = field(init=False, default=())
    """The newest use of the node's GPUs."""
    health: HealthWatch = field(init=False)
    _logs: OwnLogs | None = field(init=False)
    _joined: float | None = None
    """When this membership's Ray was in the cluster; None before. Slow failures are failures."""
    _why_ended: str = ""
    """Why this node itself ended its Ray, in words."""

    def __post_init__(self) -> None:
        head, leases = _head(self.settings), RunFiles(self.settings.run_dir).leases
        self.locator = HeadLocator(head.value, leases)
        self.candidate = Candidate(self.settings, self.inbox)
        self.health = HealthWatch(self.settings)
        self.ray_token = self.token
        self._logs = log_shipper.own_logs(self.settings, LIFE)

    def take_gpu_use(self, gpus: Sequence[GpuUse]) -> None:
        self.gpus = gpus

    def take_token(self, token: str) -> None:
        """Ask by another token, which `rotate-token` has put in the place of this node's."""
        log.info("the head has a new token, and this node has it, too")
        self.token = token

    def _take_ray_token(self, token: str) -> None:
        if token == self.ray_token:
            return
        run_token.hide_from_shells(self.ray_token)
        run_token.show_to_shells(token)
        self.ray_token = token
        self.services.use(ray_node.environment(self.settings, token))

    def keep(self) -> int:
        """Join again and again until the run ends; return the exit code."""
        failures = 0
        while True:
            self._joined = None
            try:
                ended = self._join_once()
            except UntrustedError:
                raise
            except WrongTokenError:
                if not (other := run_token.other_than(self.token, self.settings, self.inbox.stop)):
                    raise
                self.token = other
                continue
            self._why_ended = ended.why if isinstance(ended, RayEnded) else ""
            match ended:
                case HeadSaid(outcome, exit_code):
                    log.info("the run has %s", outcome)
                    return exit_code
                case StopAsked(why):
                    log.info("%s: leaving the cluster", why)
                    return ExitCode.STOPPED
                case HeadLost(why):
                    log.warning("the head is lost (%s); waiting for it", why)
                    self.candidate.watch.begin()
                case JoinAgain():
                    log.warning("the head asks this node to join again")
                case RayEnded(exit_code, _):
                    lasted = 0.0 if self._joined is None else time.monotonic() - self._joined
                    failures = wait.failures_in_a_row(failures, lasted)
                    if failures == TRIES:
                        rays_log = f"RUN/logs/ray-{self.settings.node_name}.log"
                        what = "Ray on this node ended %d times in a row: giving up; %s says why"
                        log.error(what, failures, rays_log)
                        return ExitCode.RETRY
                    log.warning("Ray on this node ended with %d; joining again", exit_code)
                    self.inbox.stop.wait(wait.backoff(failures))

    def _join_once(self) -> Message:
        """Run one membership, from the search for the head to the message that ended it."""
        settings, head = self.settings, self.locator.name
        proof = StorageProof(settings.run_dir, shared=settings.shares_run_dir)
        known: dict[str, NodeInfo] = {}
        trust = trust_of(settings)

        def door(host: str) -> tuple[ControlClient, NodeInfo]:
            own = address_of.worker_address(settings, host)
            if own not in known:
                known[own] = self._node_info(own)
                tls_files.check(settings, own)
            client = ControlClient(host, settings.control_port, self.token, trust=trust)
            client.on_token = self.take_token
            return client, known[own]

        def check_in(client: ControlClient, info: NodeInfo) -> CheckedIn:
            said = replace(self._now(info), storage=proof.show())
            try:
                return client.check_in(said)
            except UntrustedError as error:
                unfit_report.report_tls(error, client, said)
                raise
            except ANSWERED:
                self.candidate.watch.heard()
                raise

        def way_in() -> WayIn:
            return through(self.locator.find(), door, check_in)

        def unfit_or_lost() -> None:
            self.locator.raise_if_unfit()
            self.candidate.stand()

        try:
            self.candidate.stand()
            self._wait_for(f"the head's name {head}", self.locator.find, unfit_or_lost)
            way = self._wait_for(f"the head at {head}", way_in, unfit_or_lost)
        finally:
            proof.withdraw()
        log.info("checked in at the head %s as %s, %s", head, way.info.node, way.info.address)
        self.locator.known, self.locator.kept = True, way.host
        self.candidate.accepted(way.heritage, way.info.address)
        self._take_ray_token(way.ray_token or self.token)
        return self._stay(way)

    def _stay(self, way: WayIn) -> Message:
        """Join Ray at the head that has accepted this node; return what ended the membership."""
        settings, client, host = self.settings, way.client, way.host
        put, over = self.inbox.put, threading.Event()

        def tell(message: Message) -> None:
            if not over.is_set():
                put(message)

        def is_there() -> bool:
            """Asked when the head does not answer."""
            self.candidate.watch.begin(lambda: tell(HeadLost("a later head has the lease")))
            return self.locator.is_at(host) and self.candidate.watch.vacancy() is None

        def raise_if_over_or_moved() -> None:
            self._raise_if_over()
            self.locator.raise_if_unfit()
            if not self.locator.is_at(host):
                raise _OverError(HeadLost("it is elsewhere now"))

        try:
            self.inbox.forget()
            client.watch(
                way.info.node,
                way.incarnation,
                tell,
                is_there,
                lambda: self.gpus,
            )
            # Services start before Ray: if the head continues with fewer workers, it counts a Ray
            # node that has not joined as lost.
            tell_health = partial(client.tell_health, way.info.node)
            with log_shipper.sending(self._logs, client), self.health.telling(tell_health):
                self.services.wait_ready(self.inbox.stop, self._raise_if_over)
                self._wait_for(
                    "the head's Ray",
                    lambda: sockets.connect(host, settings.ray_port),
                    raise_if_over_or_moved,
                )
                self._raise_if_over()
                return self._belong(way)
        except _OverError as ended:
            return ended.message
        finally:
            over.set()
            client.close()

    def _wait_for(self, what: str, probe: Callable[[], T], abort: wait.Abort = wait.wait_on) -> T:
        """Return the probe's answer within ROLLCALL_HEAD_TIMEOUT.

        Raises GaveUpError, whose sentence names that variable and the one that named the head.
        """
        settings = self.settings
        try:
            with wait.limited_by("ROLLCALL_HEAD_TIMEOUT"):
                return wait.until(
                    what,
                    probe,
                    timeout=settings.head_timeout,
                    stop=self.inbox.stop,
                    longest_pause=LONGEST_PAUSE_SECONDS,
                    abort=abort,
                )
        except wait.GaveUpError as error:
            source = _head(settings).source
            remedy = f"check {source}, and that the head runs and can be reached from here"
            raise wait.GaveUpError(f"{error}: {remedy}") from None

    def _raise_if_over(self) -> None:
        """Raises _OverError if a message has arrived that ends the membership."""
        match self.inbox.take(timeout=0):
            case None | StacksAsked() | JobOver() | SpareTold() | SpareUnfit():  # no job runs yet
                return
            case message:
                raise _OverError(message)

    def _belong(self, way: WayIn) -> Message:
        """Start Ray on this node; return the message that ends the membership."""
        client, info, host = way.client, way.info, way.host
        try:
            started = self._start_ray(way)
        except RayFailedError as error:
            if error.exit_code == ExitCode.UNFIT:
                raise
            log.warning("%s", error)
            return RayEnded(1)
        except OSError as error:  # its log lies in the run directory
            if errors.exit_code(error, self.settings.run_dir) == ExitCode.UNFIT:
                raise
            log.warning("Ray does not start: %s", errors.describe(error))
            return RayEnded(1)
        with started as ray:
            try:
                # Ray itself would look for minutes for a head that is gone.
                ray.wait_ready(ray.says_started, self.inbox.stop, self._raise_if_over)
                client.check_in(self._now(info), joined=True)
                self._joined = time.monotonic()
                log.info("joined the Ray cluster of %s", host)
            except (RayFailedError, wait.NotYetError) as error:
                log.warning("%s", error)
                return RayEnded(1)
            except OSError as error:
                log.warning("Ray's log cannot be read: %s", errors.describe(error))
                return RayEnded(1)
            message = self._next_message(client, info)
            if isinstance(message, HeadLost):
                ray.abandon()
            if isinstance(message, StopAsked):
                return self._leave(client, info.node, message)
            return message

    def _start_ray(self, way: WayIn) -> RayNode:
        settings, info = self.settings, way.info
        # Its Ray keeps the token of the head's start, and so the authority, after `rotate-token`.
        tls_files.prepare(settings, self.ray_token, info.address)
        if way.bare:
            log.info("this node is a spare: its Ray offers nothing until it has a place")
            settings = replace(settings, num_cpus=0, resources={})
            info = replace(info, inventory={**info.inventory, "gpus": 0})
        arguments = ray_command_line.worker_arguments(settings, way.host)
        return RayNode(settings, arguments, info, self.ray_token, self.inbox)

    def _next_message(self, client: ControlClient, info: NodeInfo) -> Message:
        """Return what ends the membership; do what the head asks about the job meanwhile.

        Raises RefusedError if this node is a spare, and its check has failed: the head knows it.
        """
        with spare_check.of_node(self.settings, self.inbox.put) as check:
            while True:
                match self.inbox.take():
                    case SpareTold(is_spare):
                        check.told(is_spare=is_spare)
                    case SpareUnfit(why) as unfit:
                        try:
                            client.check_in(replace(self._now(info), unfit=[why]))
                        except wait.NotYetError:  # the head is told when it answers again
                            threading.Timer(1.0, self.inbox.put, [unfit]).start()
                    case StacksAsked(attempt, job):
                        run, name = RunFiles(self.settings.run_dir), self.settings.node_name
                        run = RunFiles(run.jobs / job) if job else run
                        stacks.collect(self.settings, stacks.path_of(run, attempt, name))
                    case JobOver() as over:
                        sweep = partial(leftover_cleanup.end_leftovers, self.settings, client, over)
                        threading.Thread(target=sweep, name="sweep", daemon=True).start()
                    case message:
                        assert message is not None
                        return message

    def _leave(self, client: ControlClient, node: str, asked: StopAsked) -> Message:
        """Leave once the job has saved and stopped, or after ROLLCALL_GRACE_SECONDS."""
        if not client.leave(node, asked.why):
            return asked
        log.info("%s: waiting for the job to save", asked.why)
        deadline = time.monotonic() + self.settings.grace_seconds
        while (left := deadline - time.monotonic()) > 0:
            match self.inbox.take(timeout=left):
                case HeadSaid() as outcome:
                    return outcome
                case HeadLost() | JoinAgain() | RayEnded():  # released, or nothing to wait for
                    break
        return asked  # a second request to stop does not shorten the wait

    def _node_info(self, address: str) -> NodeInfo:
        return NodeInfo(
            node=self.settings.node_name,
            address=address,
            versions=versions(self.settings),
            inventory=inventory(self.settings, address),
            resources=self.settings.resources,
            warnings=tuple(self.findings),
            findings=self.findings,
            environment=collective_variables(self.settings.environ),
            rejoins=self._why_ended,
            tls=tls_files.kind(self.settings),
            rank=self.settings.platform.rank,
            examined=LIFE if examined_whole(self.settings) else "",
        )

    def _now(self, info: NodeInfo) -> NodeInfo:
        """Return `info` with the present clock and count of OOM kills."""
        return replace(info, clock=time.time(), oom_kills=oom_kills.count())
