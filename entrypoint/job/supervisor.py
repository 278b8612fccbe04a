"""Runs attempt after attempt: observe, decide, record, act, until the run ends."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from contract import lease
from contract.exit_codes import ExitCode
from contract.files.child_variables import ATTEMPT
from contract.files.os_errors import remedy
from contract.launch import places
from contract.launch.model_digests import ModelDigests
from contract.progress import RunResult
from contract.run_dir import write_atomically
from entrypoint.cluster.server import HeadPhase
from entrypoint.job import exported_model, slow_nodes
from entrypoint.job.attempt import Attempt, AttemptPlan
from entrypoint.job.failures import classes, hang, policy, resume_check
from entrypoint.job.failures import outcome as outcomes
from entrypoint.job.failures.classes import AttemptResult, SlowNode
from entrypoint.job.failures.hang import HangWatch
from entrypoint.job.failures.outcome import Outcome, StorageLostError
from entrypoint.job.ray_jobs import JobClient
from entrypoint.job.recipes import base
from entrypoint.job.recipes.base import ArgumentsError, FilesGoneError
from entrypoint.job.rendezvous import Rendezvous
from entrypoint.job.run_context import RunContext
from entrypoint.job.slow_nodes import SlowNodes
from entrypoint.machine.gpus import discover
from entrypoint.net import wait
from entrypoint.processes.inbox import Inbox
from entrypoint.run import errors
from entrypoint.run.failure_classes import HUB, FailureClass, service_of
from entrypoint.run.flight_record import run_end
from entrypoint.run.run_attempts import TELLS_STEPS

log = logging.getLogger(__name__)

PROBE_BYTES = 2**20
ACKNOWLEDGE_SECONDS = 5.0
"""How long the head waits until all workers have received the outcome."""
ENDED_START = "ended_start"
"""Detail of the outcome of a run that a person has stopped: its ROLLCALL_START_ID, or ""."""
BY_US = (FailureClass.SCALED_UP, FailureClass.STRAGGLER)
"""The head has ended the attempt, for a better one."""
NO_FAILURE = (FailureClass.FINISHED, FailureClass.PREEMPTED, *BY_US)


def ended_by(error: Exception, run_dir: Path, inbox: Inbox) -> Outcome:
    """Return the outcome for an error that ends the supervision.

    Raises SupersededError: then a later head has the workers.
    """
    if isinstance(error, lease.SupersededError):
        raise error
    if (outcome := outcomes.of_error(error, run_dir)) is None:
        log.error("an error of the head itself ends the run", exc_info=error)
        return Outcome("failed", ExitCode.JOB_FAILED, f"the head failed: {error!r}")
    if outcome.name == "stopped":
        return replace(outcome, sentence=inbox.with_reason(outcome.sentence))
    return outcome


@dataclass(slots=True)
class Supervisor:
    run: RunContext
    rendezvous: Rendezvous
    jobs: JobClient
    _budget: policy.RestartBudget = field(init=False)
    _hang: HangWatch = field(init=False)
    _slow: SlowNodes | None = field(init=False, default=None)
    _digests: ModelDigests = field(init=False)
    _unstarted: int = field(init=False, default=0)
    """Attempts in a row that could not start, because files were gone."""
    _unstarted_since: float = field(init=False, default=0.0)
    """When the first of them could not; seconds of the monotonic clock."""

    def __post_init__(self) -> None:
        self._digests = ModelDigests(self.run.files)
        settings = self.run.settings
        saves_itself = base.saves_itself(self.run.recipe, settings)
        self._budget = policy.RestartBudget(settings.max_restarts, saves_itself)

    def supervise(self) -> Outcome:
        try:
            self.rendezvous.await_files()
            self._hang, self._slow = self._hang_watch(), slow_nodes.of_run(self.run)
            while True:
                self._compare_models()
                if (stop := self.rendezvous.complete()) is not None:
                    return stop
                before = self._step()
                try:
                    result = self._attempt()
                except FilesGoneError as gone:
                    self._pause(gone)
                    continue  # the next roll call waits for those that it can look for
                self._unstarted = 0
                decision = self._decide(result, progressed=result.step > before)
                if isinstance(decision, Outcome):
                    if decision.exit_code is ExitCode.FINISHED:
                        self._look_for_run()
                        exported_model.show(self.run)
                    return decision
                self.rendezvous.record(decision)
                if isinstance(decision, policy.Swap):
                    self._evict(decision, result)
                self.rendezvous.recover(
                    decision,
                    self._budget.attempts_without_progress,
                    ray_lost=result.status == "LOST",
                )
        except Exception as error:
            return ended_by(error, self.run.settings.run_dir, self.run.inbox)
        finally:
            self.rendezvous.collective.close()
            if self._slow:
                self._slow.over()

    def _hang_watch(self) -> HangWatch:
        """Return a watch that knows the starts that earlier heads have seen. Raises OSError."""
        run = self.run
        tells_phases = run.recipe.tells_phases
        events = () if tells_phases else run.journal.landmarks("attempt", "resume", "step")
        return HangWatch(
            hang.given_timeout(run.settings),
            run.recipe.service_outage(run.settings),
            tells_phases=tells_phases,
            starts=hang.start_seconds(events, run.fingerprint),
        )

    def _look_for_run(self) -> None:
        """Raises StorageLostError if the job, or somebody else, has deleted the run directory."""
        if not self.run.files.journal.exists():
            raise StorageLostError(
                f"the job ended with exit code 0, and {self.run.files.journal} is gone: it has "
                "deleted its run directory, with all that it has left there"
            )

    def _compare_models(self) -> None:
        """Raises OtherModelError if a model has other weights than the run was begun with."""
        run = self.run
        begun = bool(run.recipe.latest(run.settings) or self._step())
        with suppress(FilesGoneError):  # the attempt says it, and waits
            self._digests.compare(run.recipe.models(run.settings), begun=begun)

    def _pause(self, gone: FilesGoneError) -> None:
        """Wait a moment after an attempt that could not start.

        Raises StorageLostError if none could for ROLLCALL_REWARD_TIMEOUT, InterruptedWaitError if
        the node is asked to stop.
        """
        if not self._unstarted:
            self._unstarted_since = time.monotonic()
        self._unstarted += 1
        if time.monotonic() - self._unstarted_since > self.run.settings.service_timeout:
            raise StorageLostError(str(gone)) from None
        log.warning("%s: trying again", gone)
        if self.run.inbox.stop.wait(wait.backoff(self._unstarted)):
            raise wait.InterruptedWaitError("asked to stop between two attempts")

    def _attempt(self) -> AttemptResult:
        """Run the next attempt. Raises FilesGoneError if the job's files are gone."""
        plan = self._plan()
        result = Attempt(self.run, plan, self.jobs, self._hang, self._slow).execute()
        if result.status == "LOST":
            return result
        lost = self.run.control.roll().lost(plan.workers)
        result = replace(result, lost_nodes=tuple(worker.as_lost for worker in lost))
        if classes.classify(result) is FailureClass.USAGE:
            return replace(result, files_gone=self._files_gone())
        return result

    def _plan(self) -> AttemptPlan:
        """Return what the next attempt is to do, and record its start."""
        run, job = self.run, self.rendezvous.job
        number = run.journal.attempts() + 1
        run.journal.attempt = number
        if resume_check.has_begun(run.journal.landmarks("attempt", "resume"), run.fingerprint):
            job = run.recipe.going_on(job)
        named = run.recipe.begins_at(job)
        resume_from = named or run.recipe.latest(run.settings)
        own = f"{run.job}-" if run.job else ""
        submission = f"rollcall-{run.control.incarnation}-{own}{number}"
        run.control.phase = HeadPhase.TRAINING
        run.control.ask_for_stacks(0)
        run.control.end_sweep()
        added = job.job[len(run.settings.job) + 1 :]
        start = policy.start(resume_from or 0, 0 if named else self._in_memory())
        run.journal.record(
            "attempt",
            f"attempt {number} starts"
            + (f" from {start}" if start else "")
            + (f" with {' '.join(added)}" if added else ""),
            submission_id=submission,
            command=run.fingerprint,
            resume_from=resume_from or 0,
            **{TELLS_STEPS: base.tells_steps(run.recipe, job)},
        )
        command = run.recipe.command(job, resume_from)
        of_attempt = self._name_of_tracker() | {
            ATTEMPT: str(number),
            **lease.environment(run.journal.claim),
            **discover.of_driver(run.settings),
        }
        workers = self.rendezvous.present or ()
        if run.settings.keeps_spares and not run.settings.ray_address:
            of_attempt |= places.environment([run.settings.node_name, *workers])
        command = replace(command, env={**command.env, **of_attempt})
        return AttemptPlan(submission, number, resume_from or 0, command, workers)

    def _name_of_tracker(self) -> dict[str, str]:
        """Return the variable that names the run in W&B, unless the user has set it."""
        settings = self.run.settings
        of_job = settings.runtime_env.get("env_vars", {})
        is_set = "WANDB_NAME" in settings.environ or "WANDB_NAME" in of_job
        return {"WANDB_NAME": settings.name} if settings.name and not is_set else {}

    def _files_gone(self) -> str | None:
        try:
            self.run.recipe.look_for_files(self.run.settings)
        except FilesGoneError as gone:
            return str(gone)
        except ArgumentsError:
            return None  # the driver has reported it
        return None

    def _decide(self, result: AttemptResult, *, progressed: bool) -> policy.Decision:
        failure = classes.classify(result)
        if failure is FailureClass.STORAGE:
            self._prove_storage()  # before the journal needs it
        self.rendezvous.collective.ended(failure)
        reason = classes.explain(result, failure)
        history = self._budget.after(
            failure,
            classes.error_of_code(reason, failure),
            progressed=progressed or failure in BY_US,
        )
        service = service_of(failure, reason.sentence)
        history = replace(history, lacks_hub=service == HUB)
        at = f" ({reason.place})" if failure is FailureClass.CODE else ""
        if failure not in NO_FAILURE:
            self.run.journal.record(
                "failure",
                f"{failure}: {reason.sentence}{at}",
                failure=failure,
                exit_code=result.exit_code,
                status=result.status,
                step=result.step,
                silent_seconds=round(result.silent_seconds, 3),
                lost_nodes=list(result.lost_nodes),
                evidence=reason.sentence,
                place=reason.place,
                service=service,
            )
        found = classes.find_evidence(result, failure)
        node = (found.node or self._worker_at(found.address)) if found else None
        if failure is FailureClass.STRAGGLER and isinstance(result.cause, SlowNode):
            assert self._slow is not None
            node = result.cause.node if self._slow.is_free() else None
        from_step = self.run.recipe.latest(self.run.settings) or 0
        in_memory = self._in_memory()
        decision = policy.decide(failure, history, from_step, node, in_memory=in_memory)
        if decision.sentence == policy.OWN_SAVE and result.cause:
            return replace(decision, sentence=f"{result.cause.sentence}: {policy.OWN_SAVE}")
        if advice := self.run.recipe.less_memory(self.run.settings).after(failure):
            return replace(decision, sentence=f"{decision.sentence}; {advice}")
        return decision

    def _evict(self, decision: policy.Swap, result: AttemptResult) -> None:
        if self._slow and decision.worker and result.cause:
            self._slow.evict(decision.worker, result.cause.sentence)

    def _worker_at(self, address: str | None) -> str | None:
        return self.run.control.worker_at(address) if address else None

    def _prove_storage(self) -> None:
        """Wait until the run directory takes a write again. Raises StorageLostError.

        The journal takes no event meanwhile: the phase alone says it.
        """
        control = self.run.control
        control.phase, before = HeadPhase.AWAITING_STORAGE, control.sentence
        probe = self.run.files.root / ".probe"

        def write() -> None:
            try:
                lease.check(self.run.journal.claim)  # this reads the run's storage, too
                write_atomically(probe, "x" * PROBE_BYTES)
                probe.unlink()
            except OSError as error:
                why = f"{probe.parent}: {error.strerror}"
                cure = remedy(error)
                control.sentence = f"{why}: {cure}" if cure else why
                raise wait.NotYetError(why) from None

        what, timeout = "the run directory to take a write", self.run.settings.service_timeout
        try:
            with wait.limited_by("ROLLCALL_REWARD_TIMEOUT"):
                wait.until(what, write, timeout=timeout, stop=self.run.inbox.stop)
        except wait.GaveUpError as error:
            raise StorageLostError(str(error)) from None
        control.sentence = before

    def _step(self) -> int:
        progress = self.run.progress()
        return progress.step if progress else 0

    def _in_memory(self) -> int:
        """Return the newest step that the nodes were known to hold; 0 if they held none."""
        progress = self.run.progress()
        return (progress.in_memory if progress else None) or 0


def conclude(outcome: Outcome, run: RunContext, seconds: float) -> ExitCode:
    """Record the outcome and announce it to every worker; return the exit code of all nodes.

    `seconds`: how long the run has taken.

    If storage does not take the outcome, the workers are told all the same: they would wait for a
    head that does not come. Raises SupersededError: then a later head has the workers.
    """
    try:
        record(outcome, run, seconds)
    except OSError as error:
        outcome = outcomes.unrecorded(outcome, errors.describe(error))
        log.error("%s", outcome.sentence)
    end = None
    with suppress(OSError):
        end = run_end.read(run.files)
    run.control.announce(outcome.name, outcome.exit_code, end)
    run.control.wait_until_acknowledged(ACKNOWLEDGE_SECONDS)
    return outcome.exit_code


def record(outcome: Outcome, run: RunContext, seconds: float) -> None:
    """Write result.json and the journal's last event. Raises OSError and SupersededError."""
    lease.check(run.journal.claim)
    RunResult(
        outcome=outcome.name,
        exit_code=outcome.exit_code,
        attempts=run.journal.attempts(),
        progress=run.progress(),
        seconds=seconds,
    ).write(run.files)
    run.journal.record(
        "outcome",
        outcome.sentence,
        outcome=outcome.name,
        exit_code=int(outcome.exit_code),
        command=run.fingerprint,
        **_ended_start(outcome, run),
    )


def _ended_start(outcome: Outcome, run: RunContext) -> dict[str, str]:
    """Return the start that a person has ended, which a platform is not to begin again."""
    asked = run.inbox.node_stop
    if outcome.name != "stopped" or asked is None or not asked.by_person:
        return {}
    return {ENDED_START: run.settings.start_id or ""}
