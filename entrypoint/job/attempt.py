"""One submission of the job: submit it, watch it, report how it ended."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from contract.durations import counted, duration
from contract.launch.busy import busy
from contract.launch.places import MOVED
from contract.progress import Phase, Progress
from contract.redaction import redact
from entrypoint.cluster.server import HeadPhase
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.console import ProgressLine
from entrypoint.job import job_end, ranks_behind
from entrypoint.job.failures import hang, resume_check, user_modules
from entrypoint.job.failures.classes import (
    BEFORE_THE_DRIVER,
    NOT_TAKEN,
    AttemptResult,
    Cause,
    Hung,
    ScaleUp,
    StopRequested,
    WorkerLeaving,
    WrongStart,
)
from entrypoint.job.failures.evidence_log import EvidenceLog, plain
from entrypoint.job.failures.hang import HangWatch
from entrypoint.job.job_end import Lacking
from entrypoint.job.job_events import JobEvents
from entrypoint.job.log_progress import LogProgress
from entrypoint.job.ranks_behind import RanksBehind
from entrypoint.job.ray_jobs import NEVER, JobClient, JobInfo, JobRefusedError
from entrypoint.job.recipes.base import JobCommand
from entrypoint.job.reported_steps import ReportedSteps
from entrypoint.job.run_context import RunContext
from entrypoint.job.slow_nodes import SlowNodes
from entrypoint.machine import oom_kills
from entrypoint.machine.oom_kills import OomWatch
from entrypoint.net import wait
from entrypoint.processes import leftovers, process, stacks
from entrypoint.processes.inbox import ENDED, JobEnded, RayEnded, StopAsked, WorkerLeaves
from entrypoint.run.failure_classes import FailureClass

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
UNTAKEN_SECONDS = 10.0
"""How long Ray may need to take a job, until the head's phase says so."""
LAST_STATUS_SECONDS = 20.0
LATE_SECONDS = 30.0
"""Seconds past ROLLCALL_GRACE_SECONDS until a stopping job is killed, and again until Ray's silence
about its end counts as a lost Ray."""
SWEEP_SECONDS = 5.0
"""How long to wait for the workers to end what the job has left there."""
HEAR_SECONDS = 1.0
"""How long to wait for the workers' counts of OOM kills at the end of an attempt."""


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    submission: str
    """Ray's name for this submission of the job."""
    number: int
    resume_from: int
    """Step of the checkpoint to resume from; 0: start at the beginning."""
    command: JobCommand
    workers: tuple[str, ...]
    """The workers that are there as the attempt starts."""


@dataclass(slots=True)
class Attempt:
    """`execute` submits, follows and watches the job.

    The main thread waits on the inbox. A second thread puts JobEnded into it when the job is over,
    and a third one copies the job's log: a job may print more than that takes in.
    """

    run: RunContext
    plan: AttemptPlan
    jobs: JobClient
    hang: HangWatch
    slow: SlowNodes | None
    """None if nobody asks, or the job tells no times of its ranks."""
    _evidence: EvidenceLog = field(init=False)
    _kills: OomWatch = field(init=False)
    _ranks: RanksBehind = field(init=False)
    _line: ProgressLine = field(default_factory=ProgressLine)
    _cause: Cause | None = None
    """Why this class has asked the job to end, or has killed it."""
    _saved_before: int | None = None
    """Step of the newest checkpoint when additional workers were first seen."""
    _begun: bool = False
    """The attempt's first progress has been compared to its checkpoint."""
    _silent: frozenset[str] = frozenset()
    """Workers that were not heard at the last look."""
    _lost: frozenset[str] = frozenset()
    """Workers that the journal says are silent."""
    _told: LogProgress = field(init=False)
    """Steps that the job's log tells."""
    _reported: ReportedSteps | None = field(init=False)
    """None for a trainer that records its own steps."""
    _ray_lost: threading.Event = field(default_factory=threading.Event)
    _ray_ended: str = "Ray does not say how the job ended"
    _events: JobEvents = field(init=False)
    """What the job writes to the journal."""
    _newest: Progress | None = None
    _began: float = field(default_factory=time.monotonic)
    """Seconds of the monotonic clock."""
    _lines: int = 0
    """Lines of the job's log so far."""
    _over: threading.Event = field(default_factory=threading.Event)
    """The job has ended, or Ray will not say so any more."""
    _copied: threading.Event = field(default_factory=threading.Event)
    """The job's log is copied, and its last lines are read."""
    _asked_at: float | None = None
    """When the job was first asked to end; seconds of the monotonic clock."""
    _killed_at: float | None = None

    def __post_init__(self) -> None:
        self._evidence = EvidenceLog(self._step_of_line, self.run.recipe.failure_in)
        self._events = JobEvents(self.run.journal)
        own, control = self.run.settings.node_name, self.run.control
        self._kills = OomWatch(lambda: {**control.oom_kills(), own: oom_kills.count()})
        self._ranks = ranks_behind.of_run(self.run, self._line.end)

    def execute(self) -> AttemptResult:
        """Raises InterruptedWaitError if the node is asked to stop before Ray has the job."""
        run, plan = self.run, self.plan
        before = self._progress()  # first: the job may report its first step at once
        step = before.step if before else 0
        self._told = LogProgress(run.recipe, run.settings, run.journal, before)
        self._told.added = plan.resume_from if run.recipe.counts_anew else 0
        reported = ReportedSteps(run.journal, plan.resume_from, step)
        self._reported = None if run.recipe.tells_phases else reported
        lacking_at_end = run.recipe.lacking_at_end(run.settings)
        own_trainer = RECIPES[run.settings.recipe].own_trainer
        self._end_leftovers("an earlier job")
        try:
            self._submit()
        except (JobRefusedError, wait.GaveUpError) as error:
            told = f"the job has not begun: {error}"
            if isinstance(error, wait.GaveUpError):
                told = "; ".join(filter(None, (told, busy())))
            return AttemptResult(status=NOT_TAKEN, message=told, own_trainer=own_trainer)
        for work in (self._wait_for_end, self._copy_log):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        self._watch(before)
        if not self._ray_lost.is_set():  # else the workers end their Ray, and all below it
            run.control.sweep(plan.submission)
        self._end_leftovers("the job, which has ended,", SWEEP_SECONDS)
        info, step = self._last_status(), self._step()
        if info.status != "SUCCEEDED":
            run.control.hear_all(HEAR_SECONDS)
            self._look_for_kills()
            self._look_for_late_ranks(step)
        unfinished = self._unfinished(lacking_at_end) if info.status == "SUCCEEDED" else ""
        if info.error_type in BEFORE_THE_DRIVER:
            self._evidence.read_ray_message(redact(info.message, run.settings.secrets))
        result = AttemptResult(
            status=info.status,
            exit_code=info.driver_exit_code,
            error_type=info.error_type,
            message=plain(info.message) or info.status,
            last_error=self._evidence.last_error,
            told_error=self._evidence.told_error(step),
            told_place=self._evidence.told_place(),
            told_is_raised_there=self._evidence.told_is_raised_there(),
            evidence=self._evidence.at(step),
            step=step,
            silent_seconds=self.hang.silent_seconds,
            cause=self._cause,
            unfinished=unfinished,
            own_trainer=own_trainer,
        )
        return user_modules.looked_up(result)

    def _submit(self) -> None:
        """Give Ray the job; the head's phase says if that takes long. Raises as `submit` does."""
        plan, control = self.plan, self.run.control
        late = threading.Timer(UNTAKEN_SECONDS, setattr, (control, "phase", HeadPhase.AWAITING_RAY))
        late.daemon = True
        late.start()
        try:
            self.jobs.submit(plan.submission, plan.command, self.run.inbox.stop)
        finally:
            late.cancel()
            late.join()
            control.phase = HeadPhase.TRAINING

    def _unfinished(self, lacking_at_end: Lacking) -> str:
        """Return why exit code 0 is not an end of the run; "" if it is one."""
        number = self.plan.number
        events = self.run.journal.landmarks()  # each kind is there once at least
        kinds = frozenset(e["kind"] for e in events if e["attempt"] == number)
        end = self._told.end(self._progress(), kinds)
        lacking = lacking_at_end(end)
        return job_end.sentence(end, lacking) if lacking else ""

    def _look_for_late_ranks(self, step: int) -> None:
        """Tell which rank the others waited for, by the records that a timeout of NCCL leaves."""
        found = {one.failure for one in self._evidence.at(step)}
        if FailureClass.COLLECTIVE in found and not self.run.recipe.tells_phases:
            self._ranks.of_end()

    def _end_leftovers(self, whose: str, patience: float = 0.0) -> None:
        """End the processes that outlive a job on this node; record them, and those of workers.

        `patience`: how long to wait for the workers, in seconds.
        """
        own, name = leftovers.end(self.run.settings), self.run.settings.node_name
        found = {name: own} if own else {}
        for node, left in (found | self.run.control.left_over(patience)).items():
            self._line.end()
            where = "this node" if node == name else node
            sentence = f"{whose} has left {left} on {where}: ended"
            try:
                self.run.journal.record("left-over", sentence, node=node)
            except OSError:  # whether the run waits for its storage is decided next
                log.warning("%s", sentence)

    def _wait_for_end(self) -> None:
        try:
            self.jobs.wait_for_end(self.plan.submission, self._ray_lost)
        finally:
            self.run.inbox.put(JobEnded(self.plan.submission))

    def _copy_log(self) -> None:
        log_to = self.run.files.logs / f"attempt-{self.plan.number}.log"
        try:
            self.jobs.follow(self.plan.submission, log_to, self._read, self._over)
        finally:
            self._copied.set()

    def _read(self, line: str) -> None:
        self._lines += 1
        self._evidence.read(line)
        self._told.read(line)

    def _watch(self, before: Progress | None) -> None:
        """Follow the job until it or Ray ends. `before`: the progress of earlier attempts."""
        self.hang.begin()
        gone_before = self.run.control.silent().difference(self.plan.workers)
        self._silent = self._lost = gone_before  # an earlier attempt or the roll has told of them
        looked = time.monotonic()
        while True:
            match self.run.inbox.take(timeout=TICK_SECONDS):
                case JobEnded(ended) if ended == self.plan.submission:
                    break
                case RayEnded(exit_code, why):
                    self._ray_lost.set()
                    self._ray_ended = why or ENDED
                    log.warning("Ray on the head ended with %d", exit_code)
                    break
                case StopAsked(why) if not isinstance(self._cause, StopRequested | WrongStart):
                    self._stop(StopRequested(why))  # the job too is asked once
                case WorkerLeaves(worker, why) if self._cause is None:
                    if self.run.control.is_leaving(worker):
                        self._stop(WorkerLeaving(f"{worker} leaves: {why}"))
            self._look_for_kills()
            self._look_for_silent_workers()
            self._look_for_changes()
            self._look_for_slow_ranks()
            self._told.see(self._newest)
            self._told.publish()
            before_that, looked = looked, time.monotonic()
            if looked - before_that > TICK_SECONDS + hang.FROZEN_SECONDS:
                self.hang.leave_out(looked - before_that)
            progress = self._progress()
            if self._cause is None:
                if not self.run.recipe.tells_phases:  # else the trainer asks its ranks itself
                    self._ranks.look(self.hang.silent_seconds)
                self._look(progress, before)
            elif self._does_not_end():
                break
            self._say_events()
            self._see(progress, before)  # last: it may add events to those of the job
        if self.slow:
            self.slow.rest()
        self._over.set()
        self._copied.wait()
        self._told.see(self._progress())
        self._told.publish(last=True)
        self._see(self._progress(), before)
        if self._reported:
            self._reported.close()
        self._say_events()
        self._line.end()

    def _see(self, progress: Progress | None, before: Progress | None) -> None:
        if progress is None or progress == before:
            if self.run.recipe.tells_phases and self._cause is None:
                self._line.wait(self.plan.number, time.monotonic() - self._began)
        else:
            self._line.show(progress)
            if self._reported:
                self._reported.see(progress)

    def _look(self, progress: Progress | None, before: Progress | None) -> None:
        """End the attempt if it hangs, began at a wrong step, or can get more workers."""
        if progress is not None and progress.is_logged:
            progress = None
        if hung := self.hang.look(progress, self._phase(), self._lines):
            hung = "; ".join(filter(None, (hung, self._ranks.of_end())))
            stacks_in = stacks.path_of(self.run.files, self.plan.number)
            self.run.control.ask_for_stacks(self.plan.number)
            count = stacks.collect(self.run.settings, stacks_in)
            if self.run.settings.shares_run_dir:
                stacks.await_workers(self.run.files, self.plan.number, self.plan.workers)
            sentence = f"{hung}; stacks of {counted(count, 'process')} are in {stacks_in.name}"
            self._kill(Hung(hung), sentence)
        elif progress is not None and progress != before and not self._begun:
            self._begun = True
            events = self.run.journal.of_attempt()
            if wrong := resume_check.mismatch(self.plan.resume_from, events, progress.step):
                self._kill(WrongStart(wrong), f"{wrong}: ended, so that it saves nothing")
        elif progress is not None:
            joined = self.run.control.roll().joined_since_start(self.plan.workers)
            if joined:
                self._grow(progress.checkpoint or 0, joined)

    def _look_for_kills(self) -> None:
        for node, kills in self._kills.look().items():
            self._line.end()
            self.run.journal.record(
                "oom-kill", self._evidence.add_oom_kills(node, kills), node=node, kills=kills
            )

    def _look_for_changes(self) -> None:
        """Record what has become worse on the nodes, each once."""
        for one in self.run.control.health.take():
            self._tell("node-change", one.sentence, **one.as_dict())

    def _look_for_slow_ranks(self) -> None:
        """Tell of slow ranks; end the attempt if a slow node leaves for a spare."""
        if self.slow is None or self._cause is not None:
            return
        leaves = self.slow.look(self._tell)
        if leaves and self._begun:  # each attempt gains a step, whatever spares do
            self._stop(leaves)

    def _tell(self, kind: str, sentence: str, /, **details: Any) -> None:
        self._line.end()
        self.run.journal.record(kind, sentence, **details)

    def _look_for_silent_workers(self) -> None:
        """Record who falls silent and who is heard again: the job may live on for minutes.

        A worker whose connection breaks once is heard again by the next look.
        """
        now = self.run.control.silent()
        for name in sorted((now & self._silent) - self._lost):
            self._tell_worker("node-lost", name, "is silent: look at its machine and its network")
        for name in sorted(self._lost - now):
            self._tell_worker("node-back", name, "is heard again")
        self._lost = (self._lost | self._silent) & now
        self._silent = now

    def _tell_worker(self, kind: str, name: str, what: str) -> None:
        self._tell(kind, f"{name} {what}", node=name)

    def _say_events(self) -> None:
        """Log what only the job knows: how it began, and what it has repaired.

        The spare on which the job goes on gets the place of the lost worker.
        """
        for event in self._events.new():
            self._line.end()
            self.run.journal.say(event)
            if event["kind"] == MOVED and self.run.settings.keeps_spares:
                about = event["details"]
                self.run.control.move_place(str(about.get("lost")), str(about.get("node")))

    def _grow(self, saved: int, sentence: str) -> None:
        """Stop at the first checkpoint after additional workers are there.

        A job that does not save when it is asked to stop loses least there.
        """
        if self._saved_before is None:
            self._saved_before = saved
            self._line.end()
            log.info("%s: taken in at the next checkpoint", sentence)
        elif saved > self._saved_before:
            self._stop(ScaleUp(sentence))

    def _progress(self) -> Progress | None:
        """Return the newest progress that could be read, also while storage does not answer."""
        with suppress(OSError):
            self._newest = self.run.progress() or self._newest
        return self._newest

    def _phase(self) -> Phase | None:
        if not self.run.recipe.tells_phases:
            return self._told.phase
        phase = Phase.read(self.run.files.phase)
        return phase if phase and phase.attempt == self.plan.number else None

    def _step(self) -> int:
        progress = self._progress()
        return progress.step if progress else 0

    def _step_of_line(self) -> int:
        """Return the finished steps at the newest line of the log.

        Those that the log tells are published later than that, several at once if they are fast.
        """
        told = self._told.step
        return self._step() if told is None else told

    def _stop(self, cause: Cause) -> None:
        """Ask the job to save and to end."""
        self._cause = cause
        self._asked_at = self._asked_at or time.monotonic()
        sentence = f"{cause.sentence}: asking the job to save and to stop"
        self._tell("stop", sentence, why=cause.sentence)
        threading.Thread(target=self.jobs.stop, args=(self.plan.submission,), daemon=True).start()

    def _does_not_end(self) -> bool:
        """Kill the job after its time to save; return True if Ray never reports its end."""
        now = time.monotonic()
        if self._killed_at is None:
            patience = self.run.settings.grace_seconds + LATE_SECONDS
            if self._asked_at is not None and now - self._asked_at > patience:
                assert self._cause is not None
                sentence = f"the job has not ended for {duration(patience)}: killing it"
                self._kill(self._cause, sentence)
        elif now - self._killed_at > LATE_SECONDS:
            log.warning("the job was killed, and Ray does not say that it has ended")
            self._ray_lost.set()
        return self._ray_lost.is_set()

    def _kill(self, cause: Cause, sentence: str) -> None:
        """Kill the job, which reaches no step boundary or must not save.

        If its processes are not found here, Ray ends them.
        """
        self._cause = cause
        self._tell("stop", sentence, why=cause.sentence)
        self._killed_at = time.monotonic()
        mark, number = self.run.settings.node_mark, str(self.plan.number)
        if drivers := process.find_ours_or_orphaned(mark, ROLLCALL_ATTEMPT=number):
            process.kill(drivers)
        else:
            if self.run.settings.ray_address:  # it runs there: Ray asks it first, and kills it then
                self._killed_at += self.run.settings.grace_seconds
            self.jobs.stop(self.plan.submission)

    def _last_status(self) -> JobInfo:
        if self._ray_lost.is_set():
            return JobInfo("LOST", self._ray_ended)

        def ended() -> JobInfo:
            info = self.jobs.info(self.plan.submission)
            if not info.ended:
                raise wait.NotYetError(f"the job is {info.status}")
            return info

        what, timeout = "the job's last status", LAST_STATUS_SECONDS
        try:
            return wait.until(what, ended, timeout=timeout, stop=NEVER)
        except wait.GaveUpError:
            return JobInfo("LOST", "Ray does not say how the job ended")
