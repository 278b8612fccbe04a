"""A worker's membership of the cluster: check in, join Ray, stay; and again if it is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from contract import lease
from contract.durations import duration
from contract.exit_codes import ExitCode
from contract.options import ConfigError
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
from entrypoint.machine.gpus.use import GpuUse
from entrypoint.net import relay, sockets, wait
from entrypoint.node import log_shipper, own_info, ray_node, unfit_report
from entrypoint.node.candidate import Candidate
from entrypoint.node.find_head import HeadLocator
from entrypoint.node.health_watch import HealthWatch
from entrypoint.node.log_shipper import OwnLogs
from entrypoint.node.member import Member, OverError, raise_if_over
from entrypoint.node.way_in import WayIn, through
from entrypoint.processes.inbox import (
    HeadLost,
    HeadSaid,
    Inbox,
    JoinAgain,
    Message,
    RayEnded,
    StopAsked,
)
from entrypoint.processes.services import Services
from entrypoint.run import token as run_token
from entrypoint.run.lease import SILENCE_SECONDS, look
from entrypoint.run.lost_head import failover, what_follows
from entrypoint.run.tls import files as tls_files

log = logging.getLogger(__name__)
T = TypeVar("T")

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
        self._logs = log_shipper.own_logs(self.settings, own_info.LIFE)

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
                known[own] = own_info.of_worker(settings, own, self.findings, self._why_ended)
                tls_files.check(settings, own)
            client = ControlClient(host, settings.control_port, self.token, trust=trust)
            client.on_token = self.take_token
            return client, known[own]

        def check_in(client: ControlClient, info: NodeInfo) -> CheckedIn:
            said = replace(own_info.now(info), storage=proof.show())
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
        client, host = way.client, way.host
        settings = replace(self.settings, ray_port=way.ray_port or self.settings.ray_port)
        put, over = self.inbox.put, threading.Event()

        def tell(message: Message) -> None:
            if not over.is_set():
                put(message)

        def is_there() -> bool:
            """Asked when the head does not answer."""
            self.candidate.watch.begin(lambda: tell(HeadLost("a later head has the lease")))
            return self.locator.is_at(host) and self.candidate.watch.vacancy() is None

        def raise_if_over_or_moved() -> None:
            raise_if_over(self.inbox)
            self.locator.raise_if_unfit()
            if not self.locator.is_at(host):
                raise OverError(HeadLost("it is elsewhere now"))

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
            with (
                _forwarding_to_head(settings, way),
                log_shipper.sending(self._logs, client),
                self.health.telling(tell_health),
            ):
                self.services.wait_ready(self.inbox.stop, partial(raise_if_over, self.inbox))
                self._wait_for(
                    "the head's Ray",
                    lambda: sockets.connect(host, settings.ray_port),
                    raise_if_over_or_moved,
                )
                raise_if_over(self.inbox)
                member = Member(settings, self.inbox, way, self.ray_token)
                try:
                    return member.belong()
                finally:
                    self._joined = member.joined
        except OverError as ended:
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
            raise wait.GaveUpError(f"{error}: {remedy}{self._lost_head()}") from None

    def _lost_head(self) -> str:
        """Return what the run directory tells of a head that was killed; "" if of none."""
        run = RunFiles(self.settings.run_dir)
        with suppress(OSError):
            silent, is_over = lease.silence(run.leases), look(run.leases)[1].get("over")
            if silent is not None and silent > SILENCE_SECONDS and not is_over:
                follows = what_follows(failover(run), silent)
                return f". The head of {run.root} was last there {duration(silent)} ago: {follows}"
        return ""


def _forwarding_to_head(settings: Settings, way: WayIn) -> AbstractContextManager[None]:
    """Pass on what comes to this node's control port, if the head has moved, until the exit.

    People and programs know the address of the head that was lost. Its machine, once it is a
    worker, passes them on, and so does every other worker. A port that another program has stays
    with that.
    """
    if way.heritage is None or way.heritage.takeovers == 0:
        return nullcontext()
    port = settings.control_port
    try:
        listener = sockets.listen(port, address_of.bound(settings))
    except (OSError, ConfigError) as error:
        log.info("port %d of this node does not lead to the head: %s", port, error)
        return nullcontext()
    log.info("port %d of this node leads to the head at %s", port, way.host)
    return relay.relaying(listener, way.host, port)
