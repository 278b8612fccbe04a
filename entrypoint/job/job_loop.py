"""Runs submitted jobs one after another, each as a run of its own, until the head is to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from contract.durations import counted
from contract.exit_codes import ExitCode
from contract.journal_file.index import landmarks
from contract.redaction import redact
from contract.run_dir import RunFiles
from entrypoint.cluster.server import HeadPhase
from entrypoint.job import run_identity, supervisor
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.job_queue import SUBMITTED_AGAIN, JobQueue
from entrypoint.job.jobs import Job
from entrypoint.job.recipes import base as recipes
from entrypoint.job.rendezvous import Cluster, restart_ray
from entrypoint.job.run_context import RunContext
from entrypoint.processes.inbox import ENDED, RayEnded, WorkerLeaves
from entrypoint.run.attempt_ends import INTERRUPTED
from entrypoint.run.journal import Journal

IDLE_SECONDS = 0.5
"""Interval between looks at the queue."""
MOST_NAMED = 3
"""Waiting jobs that the cluster's last sentence names."""
OF_THE_CLUSTER = (ExitCode.UNREACHABLE, ExitCode.RETRY, ExitCode.UNFIT)
"""A job that ends with one of these did nothing wrong: its nodes, their Ray or a service failed."""


@dataclass(frozen=True, slots=True)
class JobLoop:
    run: RunContext
    """Of the cluster: its run directory holds the jobs."""
    queue: JobQueue
    cluster: Cluster

    def serve(self, supervise: Callable[[RunContext], Outcome]) -> Outcome:
        """Run jobs until the node is asked to stop, or the cluster fails.

        `supervise`: leads one job to its outcome. Raises RayFailedError if Ray does not start again
        between two jobs, OSError if the queue cannot be written, and SupersededError if a later
        head has the run.
        """
        while True:
            if asked := self.run.inbox.node_stop:
                why = f"{asked.why}: the cluster stops{self._left()}"
                return Outcome("stopped", ExitCode.STOPPED, why)
            if (job := self.queue.begin_next()) is None:
                self._wait()
                continue
            if (failed := self._lead(job, supervise)) is not None:
                return failed

    def _left(self) -> str:
        """Return which jobs wait for the next head; "" if none does."""
        left = self.queue.waiting()
        if not left:
            return ""
        named = ", ".join(left[:MOST_NAMED]) + (", …" if len(left) > MOST_NAMED else "")
        return f". The next head goes on with {counted(len(left), 'job')} of the queue ({named})"

    def _wait(self) -> None:
        """Wait for a job, and keep Ray and the workers ready for it."""
        self.run.control.phase = HeadPhase.AWAITING_JOB
        match self.run.inbox.take(timeout=IDLE_SECONDS):
            case RayEnded(_, why):
                self.run.journal.record("ray", f"{why or ENDED}: {self.cluster.remedy}")
                restart_ray(self.run, self.cluster)
            case WorkerLeaves():
                self.run.control.release_leaving()
            case _:
                return

    def _lead(self, job: Job, supervise: Callable[[RunContext], Outcome]) -> Outcome | None:
        """Run one job; return the outcome of the cluster if the cluster has failed.

        A job that the node's own stop or a failed cluster has interrupted stays in the queue.
        """
        if self._ended_before(job):
            return None
        began = time.monotonic()
        run = self._run_of(job)
        jobs, inbox = self.run.control.jobs, self.run.inbox
        jobs.shown = job.id
        outcome = supervise(run)
        self.run.control.idle = ""
        stopped_with_node = outcome.name == "stopped" and inbox.node_stop is not None
        failed = outcome.exit_code in OF_THE_CLUSTER
        if (failed or stopped_with_node) and not self.queue.is_stopping(job):
            why = redact(outcome.sentence, run.settings.secrets)
            sentence = f"{job.id} goes on with the next head: {why}"
            self.run.journal.record(INTERRUPTED, sentence, job=job.id)
            with suppress(OSError):  # a user may have deleted the job's directory
                run.journal.write(INTERRUPTED, sentence)
            return replace(outcome, sentence=why) if failed else None
        run.files.logs.mkdir(parents=True, exist_ok=True)  # a user may have deleted it
        supervisor.record(outcome, run, time.monotonic() - began)
        jobs.shown = None
        self.queue.end(job, outcome.name, outcome.exit_code, outcome.sentence)
        inbox.after_job()
        if outcome.exit_code != ExitCode.FINISHED and inbox.node_stop is None:
            # What the job has left on the nodes, such as detached actors, holds memory and GPUs.
            restart_ray(self.run, self.cluster)
        return None

    def _ended_before(self, job: Job) -> bool:
        """End a job whose outcome an earlier head recorded, but not in the queue."""
        run = RunFiles(self.queue.settings_of(job).run_dir)
        ends = ("outcome", SUBMITTED_AGAIN)
        events = list(landmarks(run.journal).events(ends))
        if not events or events[-1]["kind"] == SUBMITTED_AGAIN:
            return False
        details, sentence = events[-1]["details"], events[-1]["sentence"]
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
        verb = "continues" if journal.attempts() else "begins"
        journal.record("start", f"{job.id} {verb} on the cluster of {settings.node_name}")
        return run
