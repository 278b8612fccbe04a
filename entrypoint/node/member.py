"""A worker that a head has accepted: its Ray, and what the head tells it, until one ends."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.cluster.client import ControlClient, DeclinedError
from entrypoint.cluster.trust import WrongTokenError
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.node import own_info, ray_command_line, spare_check
from entrypoint.node.ray_node import RayNode
from entrypoint.node.way_in import WayIn
from entrypoint.processes import leftovers, rank_processes, stacks
from entrypoint.processes.inbox import (
    HeadLost,
    HeadSaid,
    Inbox,
    JobOver,
    JoinAgain,
    Message,
    RanksAsked,
    RayEnded,
    RayFailedError,
    SpareTold,
    SpareUnfit,
    StacksAsked,
    StopAsked,
)
from entrypoint.run import errors
from entrypoint.run.tls import files as tls_files

log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.5
LATE_SECONDS = 10.0
"""For Ray to end its workers of the job: a worker that dies leaves its children."""


class OverError(Exception):
    """The membership ended before Ray on this node was ready; `message` says why."""

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.message = message


def raise_if_over(inbox: Inbox) -> None:
    """Raises OverError if a message has arrived that ends the membership."""
    match inbox.take(timeout=0):
        case None | StacksAsked() | RanksAsked() | JobOver() | SpareTold() | SpareUnfit():
            return  # no job runs yet
        case message:
            raise OverError(message)


@dataclass(slots=True)
class Member:
    settings: Settings
    inbox: Inbox
    way: WayIn
    ray_token: str
    """Of the head's Ray."""
    joined: float | None = field(init=False, default=None)
    """When its Ray was in the cluster, by the monotonic clock; None before."""

    def belong(self) -> Message:
        """Start Ray on this node; return the message that ends the membership.

        Raises OverError.
        """
        way = self.way
        client, info, host = way.client, way.info, way.host
        try:
            started = self._start_ray()
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
                over = partial(raise_if_over, self.inbox)
                ray.wait_ready(ray.says_started, self.inbox.stop, over)
                client.check_in(own_info.now(info), joined=True)
                self.joined = time.monotonic()
                log.info("joined the Ray cluster of %s", host)
            except (RayFailedError, wait.NotYetError) as error:
                log.warning("%s", error)
                return RayEnded(1)
            except OSError as error:
                log.warning("Ray's log cannot be read: %s", errors.describe(error))
                return RayEnded(1)
            message = self._next_message()
            if isinstance(message, HeadLost):
                ray.abandon()
            if isinstance(message, StopAsked):
                return self._leave(message)
            return message

    def _start_ray(self) -> RayNode:
        settings, way, info = self.settings, self.way, self.way.info
        # Its Ray keeps the token of the head's start, and so the authority, after `rotate-token`.
        tls_files.prepare(settings, self.ray_token, info.address)
        if way.bare:
            log.info("this node is a spare: its Ray offers nothing until it has a place")
            settings = replace(settings, num_cpus=0, resources={})
            info = replace(info, inventory={**info.inventory, "gpus": 0})
        arguments = ray_command_line.worker_arguments(settings, way.host)
        return RayNode(settings, arguments, info, self.ray_token, self.inbox)

    def _next_message(self) -> Message:
        """Return what ends the membership; do what the head asks about the job meanwhile.

        Raises RefusedError if this node is a spare, and its check has failed: the head knows it.
        """
        client, info = self.way.client, self.way.info
        with spare_check.of_node(self.settings, self.inbox.put) as check:
            while True:
                match self.inbox.take():
                    case SpareTold(is_spare):
                        check.told(is_spare=is_spare)
                    case SpareUnfit(why) as unfit:
                        try:
                            client.check_in(replace(own_info.now(info), unfit=[why]))
                        except wait.NotYetError:  # the head is told when it answers again
                            threading.Timer(1.0, self.inbox.put, [unfit]).start()
                    case StacksAsked(attempt, job):
                        run, name = RunFiles(self.settings.run_dir), self.settings.node_name
                        run = RunFiles(run.jobs / job) if job else run
                        stacks.collect(self.settings, stacks.path_of(run, attempt, name))
                    case RanksAsked(number):
                        with suppress(wait.NotYetError, WrongTokenError, DeclinedError):
                            here = rank_processes.of_node(self.settings)
                            client.tell_ranks(self.settings.node_name, number, here)
                    case JobOver() as over:
                        sweep = partial(end_leftovers, self.settings, client, over)
                        threading.Thread(target=sweep, name="sweep", daemon=True).start()
                    case message:
                        assert message is not None
                        return message

    def _leave(self, asked: StopAsked) -> Message:
        """Leave once the job has saved and stopped, or after ROLLCALL_GRACE_SECONDS."""
        if not self.way.client.leave(self.way.info.node, asked.why):
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


def end_leftovers(settings: Settings, client: ControlClient, over: JobOver) -> None:
    """End what a job that is over has left on this node, and tell the head.

    It is told at once, and again if something is found later.
    """
    deadline, told = time.monotonic() + LATE_SECONDS, False
    while True:
        last = not leftovers.ray_works(settings, over.at) or time.monotonic() > deadline
        left = leftovers.end(settings, over.at)
        if left:
            log.warning("the job, which has ended, has left %s on this node: ended", left)
        if left or not told:
            _tell_left_over(settings, client, over, left)
            told = True
        if last:
            return
        threading.Event().wait(AGAIN_SECONDS)


def _tell_left_over(settings: Settings, client: ControlClient, over: JobOver, left: str) -> None:
    try:
        client.tell_left_over(settings.node_name, over.submission_id, left)
    except (wait.NotYetError, WrongTokenError, DeclinedError) as error:
        log.debug("the head does not hear what the job has left here: %s", error)
