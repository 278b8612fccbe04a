"""The head's Ray, which one entrypoint may restart."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.settings import Settings
from entrypoint.job.ray_jobs import JobClient
from entrypoint.net import wait
from entrypoint.net.sockets import host_port
from entrypoint.node import ray_command_line, ray_node
from entrypoint.node.ray_node import RayNode
from entrypoint.node.ray_start_errors import last_words
from entrypoint.node.ray_state import alive_nodes
from entrypoint.processes import process
from entrypoint.processes.inbox import ENDED, Inbox, RayFailedError
from entrypoint.processes.programs import program

log = logging.getLogger(__name__)


@dataclass(slots=True)
class HeadRay:
    """Runs during a `with` block. If it ends by itself, the inbox receives RayEnded."""

    settings: Settings
    me: NodeInfo
    token: str
    inbox: Inbox
    remedy: str = "restarting Ray on all nodes"
    _node: RayNode | None = None
    _failure: RayFailedError | None = None

    @property
    def dashboard(self) -> str:
        return f"http://{host_port(self.me.address, self.settings.dashboard_port)}"

    def jobs(self, settings: Settings) -> JobClient:
        """Ray's jobs, for a run with these settings."""
        return JobClient(self.dashboard, self.token, settings.ray_dir, settings.secrets)

    def environment(self) -> dict[str, str]:
        """The environment of services beside the job."""
        return ray_node.environment(self.settings, self.token)

    def __enter__(self) -> HeadRay:
        """Start Ray. `wait_ready` raises if that fails, when workers can be told of it."""
        try:
            self._start()
        except RayFailedError as error:
            self._failure = error
        return self

    def __exit__(self, *_: object) -> None:
        if self._node is not None:
            self._node.stop()

    def wait_ready(self) -> None:
        """Wait until Ray answers.

        Raises RayFailedError, InterruptedWaitError, and OSError if Ray's log cannot be read.
        """
        if self._failure is not None:
            raise self._failure
        assert self._node is not None
        self._node.wait_ready(self._answers, self.inbox.stop)

    def alive(self) -> set[str]:
        return {node.address for node in alive_nodes(self.dashboard, self.token)}

    def mark_dead(self, name: str, why: str) -> bool:
        """Have Ray mark its nodes of this name dead at once. Returns whether there were any.

        If that fails, Ray finds out by its own health checks later.
        """
        try:
            nodes = alive_nodes(self.dashboard, self.token)
            if not (dead := [node.id for node in nodes if node.name == name]):
                return False
            declaring = process.Process(
                "declare_dead",
                [
                    *program(Program.DECLARE_DEAD, *dead),
                    *("--address", host_port(self.me.address, self.settings.ray_port)),
                    *("--why", why),
                ],
                env=ray_node.environment(self.settings, self.token)
                | process.marks(self.settings.node_mark),
                log_to=RunFiles(self.settings.run_dir).logs / "dead-nodes.log",
            )
        except (wait.NotYetError, process.StartError, OSError) as error:
            log.warning("Ray does not learn that %s: %s", why, error)
            return False
        declaring.on_exit(lambda code: _warn(declaring, why) if code else None)
        return True

    def ended(self) -> str:
        if self._node is None or self._node.running:
            return ""
        return self._node.why or ENDED

    def _answers(self) -> None:
        self.alive()

    def revive(self) -> None:
        self.__exit__()
        self._start()
        self.wait_ready()

    def _start(self) -> None:
        arguments = ray_command_line.head_arguments(self.settings, self.me.address)
        self._node = RayNode(self.settings, arguments, self.me, self.token, self.inbox)


def _warn(declaring: process.Process, why: str) -> None:
    try:
        said = last_words(declaring.tail(40))
    except OSError as error:  # of its log
        said = str(error)
    log.warning("Ray does not learn that %s: %s", why, said)
