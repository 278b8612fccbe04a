"""One Ray node on this machine: its command line, its start, its end.

`ray start --block` stays as the parent of Ray's daemons: if any daemon ends, this process ends, and
to end this process ends all daemons.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import NoReturn

import psutil

from contract.exit_codes import ExitCode
from contract.files import fd_store, private_dir
from contract.files.child_variables import NODE_DIR
from contract.launch.programs import Program
from contract.launch.ray_starts import STARTING_AGAIN, lacked_time
from contract.run_dir import RunFiles
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.settings import DebugRay, Settings
from entrypoint.machine.gpus import discover
from entrypoint.machine.inventory import load
from entrypoint.machine.view import THIS_MACHINE, Machine
from entrypoint.net import wait
from entrypoint.node import ray_command_line, ray_files, raylet
from entrypoint.node.ray_start_errors import dashboard_fault, hiding_files, last_words
from entrypoint.node.raylet import Raylet
from entrypoint.processes import leftovers, process
from entrypoint.processes.inbox import Inbox, RayEnded, RayFailedError
from entrypoint.run import errors
from entrypoint.run import token as run_token
from entrypoint.run.tls import files as tls_files

log = logging.getLogger(__name__)

READY_TIMEOUT_SECONDS = 300.0
"""Patience for the start of Ray on this node, with all tries. Ray's own limits follow from it."""
STOP_GRACE_SECONDS = 2.0
LOOK_SECONDS = 1.0
"""Interval between checks for the files that Ray needs."""
LOOKS_PER_SWEEP = 5
"""Looks after which processes of earlier jobs are looked for."""
LAST_LINES = 40
"""Lines of Ray's output in which the reason of a failed start is looked for."""
REFUSED = f"[Errno {errno.ECONNREFUSED}] {os.strerror(errno.ECONNREFUSED)}"
HEALTH_THRESHOLD = 3
REGISTER_SECONDS = 30
"""Seconds after which Ray gives up on a worker that was killed before it registered.

Ray's default is 60, for workers that import more than Ray before they register.
"""


class RayNode:
    """Started by the constructor, ended by leaving the `with` block."""

    def __init__(
        self,
        settings: Settings,
        arguments: Sequence[str],
        me: NodeInfo,
        token: str,
        inbox: Inbox,
    ) -> None:
        """`inbox` receives RayEnded if Ray ends by itself once it is ready.

        Raises RayFailedError if Ray cannot be started, OSError if its log cannot be written.
        """
        self._settings, self._mark = settings, settings.node_mark
        self._inbox = inbox
        process.raise_open_files_limit()
        gpus = int(me.inventory.get("gpus", 0))
        self._argv = [
            *ray_command_line.ray_command(),
            *ray_command_line.workers_python(settings),
            "start",
            *arguments,
            *ray_command_line.common_arguments(settings, me.address, gpus),
            *ray_command_line.standby_arguments(settings, int(me.inventory.get("memory_bytes", 0))),
        ]
        self._env = environment(settings, token) | process.marks(self._mark)
        self._log = RunFiles(settings.run_dir).logs / f"ray-{settings.node_name}.log"
        self._process = self._begin()
        self._raylet: Raylet | None = None
        """Ray's daemon, once it was seen."""
        self._lacked = ""
        """What the last try said that lacked time."""
        self._over = threading.Event()
        self._why = ""
        """Why this class ended Ray, in words."""

    def _begin(self) -> process.Process:
        """Start Ray, once nothing is left of an earlier one."""
        remove_stale(self._mark)
        if not self._settings.shares_run_dir:  # what those processes had on its way
            shutil.rmtree(RunFiles(self._settings.run_dir).scratch, ignore_errors=True)
        try:
            private_dir.make(self._settings.ray_home)
        except private_dir.NotPrivateError as error:
            raise RayFailedError(str(error), ExitCode.UNFIT) from None
        forget_cluster(self._settings)
        try:
            return process.Process("ray", self._argv, env=self._env, log_to=self._log)
        except process.StartError as error:
            code = errors.exit_code(error.error, self._settings.run_dir) if error.error else None
            raise RayFailedError(str(error), code or ExitCode.RETRY) from None

    def __enter__(self) -> RayNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(
        self, probe: Callable[[], None], stop: threading.Event, abort: wait.Abort = wait.wait_on
    ) -> None:
        """Wait until `probe` passes, then watch Ray and its files.

        A Ray that ends because it lacked time is started again. Raises RayFailedError if it ends
        for another reason, or is not ready after READY_TIMEOUT_SECONDS.
        """

        def alive() -> None:
            self._look_for_raylet()
            if self._raylet and not self._raylet.lives:  # `ray start` may wait for it for minutes
                words = self._raylet.why_ended() or self._raylet.silence
                self._start_again(f"raylet ended: {words}")
            if not self._process.running:
                self._start_again(last_words(self._process.tail(LAST_LINES)))
            if fault := dashboard_fault(self._processes()):
                self._start_again(f"its dashboard failed: {fault}")
            try:
                probe()
            except wait.NotYetError as error:  # while Ray starts, this is not a fault
                raise wait.NotYetError(str(error).replace(REFUSED, "does not listen yet")) from None

        try:
            wait.until(
                "the start of Ray on this node",
                alive,
                timeout=READY_TIMEOUT_SECONDS,
                stop=stop,
                longest_pause=0.3,
                abort=abort,
            )
        except wait.GaveUpError as error:
            said = self._lacked or last_words(self._process.tail(LAST_LINES))
            raise RayFailedError(f"{error} (its log is {self._log}): {said}") from None
        self._process.on_exit(self._tell)
        watch = threading.Thread(
            target=self._watch, args=(self._needed(),), name="watch-ray", daemon=True
        )
        watch.start()

    def _start_again(self, words: str) -> NoReturn:
        """Start Ray anew if the last start lacked time; raise NotYetError.

        Raises RayFailedError if more time would not help.
        """
        if not lacked_time(words):
            why = f"{words}{hiding_files(Path.cwd())}"
            raise RayFailedError(f"Ray did not start (its log is {self._log}): {why}")
        self._lacked = words
        log.warning("%s (%s; %s)", STARTING_AGAIN, words, load())
        self._process.stop(grace=STOP_GRACE_SECONDS)
        self._process, self._raylet = self._begin(), None
        raise wait.NotYetError(f"it is started again ({words})")

    def _processes(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _look_for_raylet(self) -> None:
        """Find the daemon as soon as it is there, and tell it the ports of its agents."""
        if self._raylet is None and (found := raylet.find(self._processes())):
            self._raylet = found
            found.tell_ports(self._settings.worker_ports.first)

    def _tell(self, code: int) -> None:
        if not self._over.is_set():
            self._over.set()
            self._inbox.put(RayEnded(code, self._why))

    def _needed(self) -> list[Path]:
        """Return the files that Ray's workers need; [] until all are there.

        The daemon creates its sockets some time after its start.
        """
        named = ray_files.needed(process.find_ours_or_orphaned(self._mark))
        return [] if ray_files.missing(named) else named

    def _end_leftovers(self) -> None:
        if left := leftovers.end_of_earlier_jobs(self._settings):
            log.warning("an earlier job has left %s on this node: ended", left)

    def _watch(self, needed: list[Path]) -> None:
        """End Ray once its daemon has ended, or one of the files without which none can start."""
        looks_without = 0
        for look in count(1):
            if self._over.wait(LOOK_SECONDS):
                return
            self._look_for_raylet()
            if look % LOOKS_PER_SWEEP == 0:
                self._end_leftovers()
            if self._raylet and not self._raylet.lives and self._process.running:
                looks_without += 1
                words = self._raylet.why_ended()
                if not words and looks_without < LOOKS_PER_SWEEP:
                    continue  # with the head's Ray it ends in silence, and `ray start` says so
                self._why = f"Ray's raylet ended: {words or self._raylet.silence}"
                log.warning("%s", self._why)
            elif not needed:
                needed = self._needed()
                continue
            elif gone := ray_files.missing(needed):
                self._why = f"Ray can start no worker there, as {gone} is gone"
                log.warning("Ray can start no worker on this node, as %s is gone: ending it", gone)
            else:
                continue
            self._process.stop(grace=STOP_GRACE_SECONDS)
            return

    @property
    def why(self) -> str:
        """Why this class has ended Ray, in words; "" if it has not."""
        return self._why

    @property
    def running(self) -> bool:
        return self._process.running

    def says_started(self) -> None:
        """A probe: `ray start` prints this line once the node's daemons are registered."""
        if "Ray runtime started" not in self._process.tail(40):
            raise wait.NotYetError("ray start has not finished")

    def stop(self) -> None:
        self._over.set()
        self._process.stop(grace=STOP_GRACE_SECONDS)
        remove_stale(self._mark)

    def abandon(self) -> None:
        """End Ray at once. Without its head, it has nothing to end in order."""
        self._over.set()
        process.kill(process.find_ours_or_orphaned(self._mark))


def fd_store_path(settings: Settings) -> Path:
    """Return the socket of the descriptor store, which outlives this node's Ray."""
    return private_dir.of_node(settings.node_mark) / "kept" / "socket"


def health_checks(node_timeout: float) -> dict[str, str]:
    """Return Ray's variables by which it counts a silent node as dead after so many seconds."""
    period = 1.0
    timeout = max(1.0, node_timeout / HEALTH_THRESHOLD - period)
    return {
        "RAY_health_check_period_ms": str(int(period * 1000)),
        "RAY_health_check_timeout_ms": str(int(timeout * 1000)),
        "RAY_health_check_failure_threshold": str(HEALTH_THRESHOLD),
    }


def environment(settings: Settings, token: str, machine: Machine = THIS_MACHINE) -> dict[str, str]:
    """Return the environment of Ray and its processes.

    Values that the user set are kept. Of AMD's variables that hide GPUs, one is left.
    """
    defaults = {
        **health_checks(settings.node_timeout),
        # Ray gives each module of its dashboard 30 s, and all 60 s: too little on a busy disk.
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": f"{READY_TIMEOUT_SECONDS:.0f}",
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": f"{READY_TIMEOUT_SECONDS:.0f}",
        # `ray start` waits 30 s for the raylet, and the raylet 30 s for an agent.
        "RAY_raylet_start_wait_time_s": f"{READY_TIMEOUT_SECONDS:.0f}",
        "RAY_agent_register_timeout_ms": f"{1000 * READY_TIMEOUT_SECONDS:.0f}",
        "RAY_JOB_STOP_WAIT_TIME_S": str(int(settings.grace_seconds)),
        # Ports of the head, by default 44217 and 44227. Ray has no flag for them.
        "AUTOSCALER_METRIC_PORT": str(settings.worker_ports.first + 7),
        "DASHBOARD_METRIC_PORT": str(settings.worker_ports.first + 8),
        "PYTHONUNBUFFERED": "1",
        # torch looks up its peers' names as it connects: 20 s if no DNS server answers.
        "RES_OPTIONS": "timeout:1 attempts:2",
        # Otherwise titles such as ray::DashboardAgent overwrite the node's mark.
        "SPT_NOENV": "1",
    }
    if settings.debug_ray is DebugRay.OFF:
        # At "info" Ray's agents log the variables of each job, and its debuggers their address.
        defaults["RAY_LOGGER_LEVEL"] = "warning"
    if ray_command_line.has_standby_ranks(settings):
        defaults["RAY_preload_python_modules"] = Program.STANDBY_IMPORTS
    if ray_command_line.has_bare_workers(settings):
        defaults["RAY_worker_register_timeout_seconds"] = str(REGISTER_SECONDS)
    ours = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "ROLLCALL_SERVICE_KEY": run_token.for_services(settings, token),
        "RAY_TMPDIR": str(settings.ray_home),  # by which Ray's commands find this Ray
        "ROLLCALL_NODE_NAME": settings.node_name,
        # The entrypoint looks for the driver's output and processes on the head.
        "RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES": "0",
        **fd_store.environment(fd_store_path(settings)),
        **tls_files.for_ray(settings),
    }
    if not settings.shares_run_dir:
        ours[NODE_DIR] = str(settings.run_dir)
    if settings.wandb_api_key:
        ours["WANDB_API_KEY"] = settings.wandb_api_key.reveal()
    if settings.debug_ray is DebugRay.LEGACY:
        ours["RAY_DEBUG"] = "legacy"
    elif settings.debug_ray is DebugRay.POST_MORTEM:
        ours["RAY_DEBUG_POST_MORTEM"] = "1"
    return defaults | discover.environment(settings, machine) | ours


def remove_stale(mark: str) -> None:
    """End the processes of an earlier Ray on this node: they hold ports, memory and GPUs."""
    ended = process.end(process.find_ours_or_orphaned(mark), grace=0.5)
    if ended:
        noun = "process" if ended == 1 else "processes"
        log.info("ended %d %s of an earlier Ray on this node", ended, noun)


def forget_cluster(settings: Settings) -> None:
    """Remove Ray's record of this node's earlier cluster.

    With that record, a head refuses to start at its old address while any process of the machine,
    even of another node, has the address on its command line.
    """
    (settings.ray_dir / "ray_current_cluster").unlink(missing_ok=True)
