"""A head on loopback: real control port and journal, a scripted job runner, no Ray."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from contract.exit_codes import ExitCode
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster.client import ControlClient
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry, Spares
from entrypoint.job.collective_check import CollectiveCheck
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.ray_jobs import JobClient, JobInfo
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.base import JobCommand
from entrypoint.job.rendezvous import Rendezvous
from entrypoint.job.run_context import RunContext
from entrypoint.job.supervisor import Supervisor
from entrypoint.net import sockets, wait
from entrypoint.net.port_block import PortBlock
from entrypoint.processes.inbox import Inbox, WorkerLeaves
from entrypoint.processes.services import Services
from entrypoint.run.journal import Journal
from tests.support.control import HEAD, TOKEN, Recorder, control_server
from tests.support.hurried import hurried

FINISHED = JobInfo("SUCCEEDED", driver_exit_code=0)
DIED = JobInfo("FAILED", "Job failed\nRuntimeError: broken", driver_exit_code=1)
STOPPED = JobInfo("STOPPED", driver_exit_code=143)

Act = Callable[["World"], JobInfo]
"""What a job does before it ends, and how it ends."""


class ScriptedJobs:
    """Behind JobClient's interface: submission number n does what the n-th act says."""

    def __init__(self, world: World, acts: Sequence[Act]) -> None:
        self._world = world
        self._acts = list(acts)
        self.endings: dict[str, JobInfo] = {}
        """Submission → how it ended: one that is given up may end while the next is followed."""
        self.submitted: list[Mapping[str, str]] = []
        self.commands: list[JobCommand] = []
        self.ids: list[str] = []
        self.stopped = threading.Event()
        self.broken: Exception | None = None
        """What an act raised that does not know its world."""
        self.tell: Callable[[str], None] = print
        self.followed = threading.Event()
        """`tell` is that of the newest submission."""

    def submit(
        self,
        submission_id: str,
        command: JobCommand,
        stop: threading.Event,
    ) -> None:
        if stop.is_set():
            raise wait.InterruptedWaitError("asked to stop")
        self.ids.append(submission_id)
        self.commands.append(command)
        self.submitted.append(command.env)
        self.stopped.clear()
        self.followed.clear()

    def follow(
        self,
        submission_id: str,
        log_to: Path,
        tell: Callable[[str], None],
        over: threading.Event,
    ) -> None:
        self.tell = tell
        self.followed.set()
        over.wait()

    def wait_for_end(self, submission_id: str, lost: threading.Event) -> None:
        self.followed.wait(2)
        try:
            self.endings[submission_id] = self._acts.pop(0)(self._world)
        except Exception as error:  # the supervisor would wait for ever for a job that has no end
            self.broken = self.broken or error
            broken = JobInfo("FAILED", repr(error), driver_exit_code=ExitCode.USAGE)
            self.endings[submission_id] = broken

    def info(self, submission_id: str) -> JobInfo:
        return self.endings.get(submission_id) or JobInfo("RUNNING")

    def stop(self, submission_id: str) -> None:
        self.stopped.set()


class Observer(Recorder):
    """Wakes the head if a worker leaves."""

    def __init__(self, inbox: Inbox) -> None:
        super().__init__()
        self._inbox = inbox

    def leaving(self, worker: str, why: str) -> None:
        self._inbox.put(WorkerLeaves(worker, why))


class World:
    """A head on loopback with everything but Ray; Ray's nodes are a set of addresses."""

    remedy = "restarting Ray on all nodes"

    def __init__(self, root: Path, *acts: Act, workers: int = 0, minimum: int = 0, **env: str):
        self.run = RunFiles(root)
        own = f"/tmp/rollcall-world-{os.getpid()}"  # in the mark: others run tests beside this one
        given = {"ROLLCALL_RUN_DIR": str(root), "ROLLCALL_RAY_TEMP_DIR": own, **env}
        self.settings = hurried({"ROLLCALL_RECIPE": "command", **given}, ["true"])
        self.journal = Journal(self.run.journal, "head")
        self.inbox = Inbox()
        self.nodes = {"127.0.0.2"}
        self.revived = 0
        self.dead: list[str] = []
        """Nodes that Ray was told to give up."""
        self.ray_ended = False
        self._lives = False
        self._timers: list[threading.Timer] = []
        self.when_revived: Callable[[], None] = lambda: None
        self.jobs = ScriptedJobs(self, acts)
        self._reserved = PortBlock()
        self.port = self._reserved.first
        spares = Spares(self.settings.spare_workers, kept=self.settings.keeps_spares)
        registry = NodeRegistry(HEAD, workers, "first", spares=spares)
        self.control = control_server(root, self.port, TOKEN, registry, Observer(self.inbox))
        recipe = recipes.load(self.settings.recipe)
        self.context = RunContext(self.settings, recipe, self.journal, self.control, self.inbox)
        services = Services(self.settings, is_head=True, env={}, tell=print)
        collective = CollectiveCheck(self.settings, "127.0.0.2:1", os.environ, ["true"])
        self.rendezvous = Rendezvous(self.context, self, services, collective, minimum)
        jobs = cast(JobClient, self.jobs)
        self.supervisor = Supervisor(self.context, self.rendezvous, jobs)

    def alive(self) -> set[str]:
        return self.nodes

    def ended(self) -> str:
        return "Ray on the head ended" if self.ray_ended else ""

    def mark_dead(self, name: str, why: str) -> bool:
        self.dead.append(name)
        return True

    def revive(self) -> None:
        self.revived += 1
        self.ray_ended = False
        self.later(0.3, self.when_revived)

    def lives(self) -> Outcome:
        with self.control:
            wait.until(
                "the control port",
                lambda: sockets.connect("127.0.0.1", self.port),
                timeout=10,
                stop=threading.Event(),
            )
            self._lives = True
            for timer in self._timers:
                timer.start()
            outcome = self.supervisor.supervise()
        if self.jobs.broken:
            raise self.jobs.broken
        return outcome

    def check_in(
        self,
        name: str,
        address: str,
        *,
        joined: bool = True,
        seen_by_ray: bool = True,
        oom_kills: int = 0,
    ) -> None:
        info = NodeInfo(node=name, address=address, versions={}, oom_kills=oom_kills)
        ControlClient("127.0.0.1", self.port, TOKEN).check_in(info, joined=joined)
        if joined and seen_by_ray:
            self.nodes.add(address)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Once it lives, or where it does already, so many seconds from now."""
        timer = threading.Timer(seconds, call)
        if self._lives:
            timer.start()
        else:
            self._timers.append(timer)

    def kinds(self) -> list[str]:
        """Of all events but those that tell how far the job is."""
        kinds = [event["kind"] for event in self.journal.events()]
        return [kind for kind in kinds if kind not in ("resume", "step")]

    def sentences(self, kind: str) -> list[str]:
        return [event["sentence"] for event in self.journal.events(kind)]


def ends(
    info: JobInfo,
    *,
    at_step: int | None = None,
    in_memory: int | None = None,
    says: Sequence[str] = (),
) -> Act:
    """A job that makes progress to `at_step`, saves there, says its last lines, and ends."""

    def act(world: World) -> JobInfo:
        if at_step is not None:
            progress = Progress(
                step=at_step,
                total_steps=100,
                samples=at_step,
                attempt=len(world.jobs.submitted),
                reward=0.0,
                reward_first=0.0,
                checkpoint=at_step,
                in_memory=in_memory,
            )
            progress.write(world.run.progress)
        for line in says:
            world.jobs.tell(line)
        return info

    return act
