"""Runs submitted jobs one after another, each as a run of its own, until the head is to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from contract.exit_codes import ExitCode
from contract.journal import read_events
from contract.run_dir import RunFiles
from entrypoint.job import run_identity, supervisor
from entrypoint.job.job_queue import Job, JobQueue
from entrypoint.job.recipes import base as recipes
from entrypoint.job.rendezvous import Cluster, restart_ray
from entrypoint.job.run_context import RunContext
from entrypoint.job.supervisor import Outcome
from entrypoint.processes.inbox import RayEnded, RayFailedError, WorkerLeaves
from entrypoint.run.journal import Journal

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.5
"""Interval between looks at the queue."""
WAITING = "waiting for a job (rollcall submit)"


@dataclass(frozen=True, slots=True)
class JobLoop:
    run: RunContext
    """Of the cluster: its run directory holds the jobs."""
    queue: JobQueue
    cluster: Cluster

    def serve(self, supervise: Callable[[RunContext], Outcome]) -> Outcome:
        """Run jobs until the node is asked to stop. `supervise`: leads one job to its outcome.

        Raises OSError if the queue cannot be written, SupersededError if a later head has the run.
        """
        while True:
            if asked := self.run.inbox.node_stop:
                return Outcome("stopped", ExitCode.STOPPED, f"{asked.why}: the cluster stops")
            if (job := self.queue.begin_next()) is None:
                self._wait()
                continue
            self._lead(job, supervise)

    def _wait(self) -> None:
        """Wait for a job, and keep Ray and the workers ready for it."""
        self.run.control.phase = WAITING
        match self.run.inbox.take(timeout=IDLE_SECONDS):
            case RayEnded():
                self.run.journal.record("ray", "Ray on the head ended: restarting it on all nodes")
                self._restart_ray()
            case WorkerLeaves():
                self.run.control.release_leaving()
            case _:
                return

    def _lead(self, job: Job, supervise: Callable[[RunContext], Outcome]) -> None:
        """Run one job. A job that the node's own stop has interrupted stays in the queue."""
        if self._ended_before(job):
            return
        began = time.monotonic()
        run = self._run_of(job)
        jobs, inbox = self.run.control.jobs, self.run.inbox
        jobs.shown = job.id
        outcome = supervise(run)
        stopped_with_node = inbox.node_stop is not None and not self.queue.is_stopping(job)
        if outcome.name == "stopped" and stopped_with_node:
            self.run.journal.record("job-interrupted", f"{job.id} goes on with the next head")
            return
        supervisor.record(outcome, run, time.monotonic() - began)
        jobs.shown = None
        self.queue.end(job, outcome.name, outcome.exit_code, outcome.sentence)
        inbox.after_job()
        if outcome.exit_code != ExitCode.FINISHED and inbox.node_stop is None:
            # What the job has left on the nodes, such as detached actors, holds memory and GPUs.
            self._restart_ray()

    def _ended_before(self, job: Job) -> bool:
        """End a job whose outcome an earlier head recorded, but not in the queue."""
        run = RunFiles(self.queue.settings_of(job).run_dir)
        outcomes = [event for event in read_events(run.journal) if event["kind"] == "outcome"]
        if not outcomes:
            return False
        details, sentence = outcomes[-1]["details"], outcomes[-1]["sentence"]
        code = details.get("exit_code", ExitCode.JOB_FAILED)
        self.queue.end(job, details["outcome"], ExitCode(code), sentence)
        return True

    def _run_of(self, job: Job) -> RunContext:
        settings = self.queue.settings_of(job)
        claim = self.run.journal.claim
        journal = Journal(
            RunFiles(settings.run_dir).journal, settings.node_name, claim, settings.secrets
        )
        recipe = recipes.load(settings.recipe)
        run = RunContext(settings, recipe, journal, self.run.control, self.run.inbox)
        run.job = job.id
        with suppress(OSError):  # none, or of a head that ended while another job ran
            self.run.files.kept.rename(run.files.kept)
        run_identity.identify(settings, run.files)
        journal.record("start", f"{job.id} begins on the cluster of {settings.node_name}")
        return run

    def _restart_ray(self) -> None:
        """Restart Ray on all nodes. If that fails, the next job's roll call tries again."""
        try:
            restart_ray(self.run, self.cluster)
        except RayFailedError as error:
            log.warning("%s", error)
