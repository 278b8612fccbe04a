"""Observe, decide, act, say one sentence: attempt after attempt, until the run is finished."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field, replace
from typing import Protocol

from entrypoint import failures, restart, wait
from entrypoint.attempt import Attempt
from entrypoint.collective_check import CollectiveCheck
from entrypoint.control import Control
from entrypoint.failures import Ending, FailureClass
from entrypoint.hang import HangWatch
from entrypoint.inbox import Inbox
from entrypoint.job import JobClient
from entrypoint.journal import Journal
from entrypoint.preflight.check import Verdict
from entrypoint.recipes.base import Recipe
from entrypoint.roll import RollState
from entrypoint.services import Services
from entrypoint.settings import PreflightMode, Settings
from trainer import fence
from trainer.contract import ExitCode, Progress, RunFiles, write_atomically

log = logging.getLogger(__name__)

PROBE_BYTES = 2**20
NODE_TIMEOUTS = 2.0
"""So many times as long as Ray itself may take to see that a node is gone, it is waited for."""
NO_FAILURE = (FailureClass.FINISHED, FailureClass.PREEMPTED, FailureClass.GROWN)


class RollIncompleteError(Exception):
    """Too few workers at the deadline; the sentence names who is missing."""


class UnplaceableError(Exception):
    """The nodes of the roll cannot hold the job; says every shortfall."""


class StorageLostError(Exception):
    """The run directory took no write before the deadline."""


class Cluster(Protocol):
    """What the supervisor asks of the head's Ray."""

    def alive(self) -> set[str]:
        """Addresses of the living nodes. Raises NotYetError while Ray cannot say."""
        ...

    def revive(self) -> None:
        """Start the head's Ray anew where it ended."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    """finished, failed or stopped."""
    exit_code: ExitCode
    sentence: str


@dataclass(slots=True)
class Supervisor:
    settings: Settings
    recipe: Recipe
    journal: Journal
    control: Control
    services: Services
    cluster: Cluster
    collective: CollectiveCheck
    jobs: JobClient
    inbox: Inbox
    minimum: int
    """With fewer workers than this at the roll's deadline, the run does not start."""
    _track: restart.Track = field(init=False)
    _hang: HangWatch = field(init=False)
    _job: Settings = field(init=False)
    """The settings, with the job's arguments as the nodes that are there allow."""
    _present: tuple[str, ...] | None = None
    """The workers that the last roll had; None before the first of this life."""
    _unseen_since: float | None = None
    """Since when the nodes are there, and Ray does not see them; a monotonic clock's seconds."""
    _first_on_ray: int = field(init=False)
    """The first attempt on this Ray: what nodes held in memory before went with theirs."""

    def __post_init__(self) -> None:
        self._job = self.settings
        self._track = restart.Track(self.settings.max_restarts)
        self._hang = HangWatch(self.settings.hang_timeout, self.recipe.outage(self.settings))
        self._first_on_ray = self.journal.attempts() + 1

    def run(self) -> Outcome:
        try:
            while True:
                if (stop := self._gather()) is not None:
                    return stop
                before = self._step()
                ending = self._attempt()
                decision = self._decide(ending, gained=self._step() > before)
                if isinstance(decision, restart.Stop):
                    return Outcome(decision.outcome, decision.exit_code, decision.sentence)
                self._record(decision)
                self._prepare(decision, ray_lost=ending.status == "LOST")
        except wait.InterruptedWaitError as error:
            return Outcome("stopped", ExitCode.STOPPED, str(error))
        except StorageLostError as error:
            return Outcome("failed", ExitCode.RUN_DIR, str(error))
        except (wait.GaveUpError, RollIncompleteError) as error:
            return Outcome("failed", ExitCode.UNREACHABLE, str(error))
        except UnplaceableError as error:
            return Outcome("failed", ExitCode.USAGE, str(error))
        finally:
            self.collective.close()

    def _gather(self) -> Outcome | None:
        """Until the roll is complete and its nodes reach each other; an outcome where they never
        do."""
        failures = 0
        while True:
            self.collective.warm_up(self.control.cards()[0], self.control.roll().expected)
            self._call_the_roll()
            self.control.phase = "collective check"
            answer = self.collective.ask(self.control.cards(), self.inbox.stop)
            if answer is None:
                return None
            verdict = answer.verdict
            self.journal.record("collective", answer.sentence, verdict=verdict, nodes=answer.faulty)
            if verdict is not Verdict.FAIL or self.settings.preflight is PreflightMode.WARN:
                return None
            failures += 1
            workers = [node for node in answer.faulty if node in self.control.roll().present]
            budget = self.settings.max_restarts
            for decision in restart.unreachable(answer.sentence, workers, failures, budget):
                if isinstance(decision, restart.Stop):
                    return Outcome(decision.outcome, decision.exit_code, decision.sentence)
                self._record(decision)
                self._prepare(decision, failures=failures)

    def _call_the_roll(self) -> None:
        """Until the expected workers are there, by their word and by Ray's, and services answer.

        Where it was complete before, it does not wait that long for a worker that is lacking.
        """
        self.control.phase = "roll call"
        before = self._present is not None or self.journal.attempts() > 0
        began = time.monotonic() if before else math.inf
        try:
            state = wait.until(
                "the roll",
                lambda: self._whole_roll(waited=time.monotonic() - began),
                timeout=self.settings.roll_timeout,
                stop=self.inbox.stop,
                longest_pause=0.3,
            )
        except wait.GaveUpError:
            state = self.control.roll()
            if not state.enough(self.minimum):
                raise RollIncompleteError(f"the roll is incomplete: {state}") from None
            log.warning("starting with fewer workers than expected: %s", state)
        self._present, expected = state.present, state.expected
        self.journal.record("roll", str(state), present=list(state.present), expected=expected)
        self._fit()
        self.services.wait_ready(self.inbox.stop)

    def _fit(self) -> None:
        """The job as these nodes can hold it."""
        offers = [card.offer for card in self.control.cards()]
        whole = self.control.roll().complete
        self._job = self.settings if whole else self.recipe.fitted(self.settings, offers)
        if lacking := self.recipe.needs(self._job, offers):
            raise UnplaceableError(f"the nodes cannot hold the job: {'; '.join(lacking)}")

    def _whole_roll(self, waited: float) -> RollState:
        self.control.let_go()
        state = self.control.roll()
        there = len(state.present)
        # Those that were lacking before are not waited for a second time.
        as_before = self._present is not None and there >= len(self._present)
        patience = 0.0 if as_before else self.settings.replace_timeout
        shrink = restart.with_fewer(
            there, state.expected, self.minimum, waited=waited, patience=patience
        )
        if not state.complete and shrink is None:
            self._unseen_since = None
            raise wait.NotYetError(str(state))
        try:
            alive, nodes = len(self.cluster.alive()), 1 + there
            if alive < nodes or (shrink is not None and alive > nodes):  # one of the lost, still
                raise wait.NotYetError(f"Ray sees {alive} of {nodes} nodes")
        except wait.NotYetError as unseen:
            self._lose_patience(str(unseen))
            raise
        self._unseen_since = None
        if shrink is not None and not as_before:
            self._record(shrink)
        return state

    def _lose_patience(self, unseen: str) -> None:
        """The nodes are there by their own word. Where Ray does not see it for long, a daemon of
        its own hangs, on whichever node, and none of their ends will tell."""
        now = time.monotonic()
        self._unseen_since = self._unseen_since or now
        waited = now - self._unseen_since
        if waited < NODE_TIMEOUTS * self.settings.node_timeout:
            return
        self._unseen_since = None
        self.journal.record("ray", f"{unseen}, for {waited:.0f} s: starting Ray anew on all nodes")
        self._begin_anew()

    def _begin_anew(self) -> None:
        # The workers' Ray would take a minute to notice that the head's is another one.
        self.control.begin_anew()
        self._first_on_ray = self.journal.attempts() + 1
        self.cluster.revive()

    def _newcomers(self) -> str | None:
        """In a sentence, once the roll is complete and was not as the attempt began."""
        state = self.control.roll()
        before = self._present or ()
        if not state.complete or len(before) >= state.expected:
            return None
        return f"{', '.join(sorted(set(state.present) - set(before)))} joined"

    def _attempt(self) -> Ending:
        number = self.journal.attempts() + 1
        self.journal.attempt = number
        resume_from = self.recipe.latest(self.settings.run_dir)
        submission = f"rollcall-{self.control.incarnation}-{number}"
        self.control.phase = "training"
        self.control.ask_for_stacks(0)
        fitting = self._job.job[len(self.settings.job) :]
        start = restart.start(resume_from or 0, self._in_memory())
        self.journal.record(
            "attempt",
            f"attempt {number} starts"
            + (f" from {start}" if start else "")
            + (f" with {' '.join(fitting)}" if fitting else ""),
            submission_id=submission,
            resume_from=resume_from or 0,
        )
        command = self.recipe.command(self._job, resume_from)
        of_attempt = {"ROLLCALL_ATTEMPT": str(number), **fence.environment(self.journal.lease)}
        command = replace(command, env={**command.env, **of_attempt})
        attempt = Attempt(
            submission,
            number,
            resume_from or 0,
            self.settings,
            self.recipe,
            self.journal,
            self.jobs,
            self.inbox,
            self._hang,
            self.control,
            self._newcomers,
        )
        ending = attempt.run(command)
        lost = () if ending.status == "LOST" else self.control.roll().lost(self._present or ())
        return replace(ending, lost_nodes=lost)

    def _decide(self, ending: Ending, *, gained: bool) -> restart.Decision:
        failure = failures.classify(ending)
        if failure is FailureClass.STORAGE:
            self._prove_storage()  # before the journal needs it
        self.collective.ended(failure)
        history = self._track.after(failure, gained=gained or failure is FailureClass.GROWN)
        if failure not in NO_FAILURE:
            self.journal.record(
                "failure",
                f"{failure}: {failures.evidence(ending, failure)}",
                failure=failure,
                exit_code=ending.exit_code,
                status=ending.status,
                step=ending.step,
                silent_seconds=round(ending.silent_seconds, 3),
                lost_nodes=list(ending.lost_nodes),
            )
        sign = failures.sign_of(ending, failure)
        faulty = self.control.worker_at(sign.address) if sign and sign.address else None
        from_step = self.recipe.latest(self.settings.run_dir) or 0
        in_memory = 0 if ending.status == "LOST" else self._in_memory()
        return restart.decide(
            failure,
            history,
            from_step,
            faulty,
            in_memory=in_memory,
            short_of_memory=sign.node if sign else None,
        )

    def _prepare(
        self,
        decision: restart.Answer,
        *,
        ray_lost: bool = False,
        failures: int | None = None,
    ) -> None:
        """Bring the cluster back to where a job can be submitted; `failures`: in a row, those of
        the job by default."""
        self.control.phase = "recovering"
        if isinstance(decision, restart.Replace):
            self.control.dismiss(decision.worker, decision.sentence)
            return
        if ray_lost:
            self._begin_anew()
        if isinstance(decision, restart.Resume) and decision.delayed:
            pause = wait.backoff(self._track.fruitless if failures is None else failures)
            log.info("waiting %.1f s before the next attempt", pause)
            if self.inbox.stop.wait(pause):
                raise wait.InterruptedWaitError("asked to stop between two attempts")

    def _record(self, decision: restart.Answer) -> None:
        answer = type(decision).__name__.lower()
        self.journal.record("decision", decision.sentence, answer=answer)

    def _prove_storage(self) -> None:
        """Until the run directory takes a write again. Raises StorageLostError."""
        probe = RunFiles(self.settings.run_dir).root / ".probe"

        def write() -> None:
            try:
                fence.check(self.journal.lease)  # on the run's own storage
                write_atomically(probe, "x" * PROBE_BYTES)
                probe.unlink()
            except OSError as error:
                raise wait.NotYetError(f"{probe.parent}: {error.strerror}") from None

        what, timeout = "the run directory to take a write", self.settings.service_timeout
        try:
            wait.until(what, write, timeout=timeout, stop=self.inbox.stop)
        except wait.GaveUpError as error:
            raise StorageLostError(str(error)) from None

    def _step(self) -> int:
        progress = self._progress()
        return progress.step if progress else 0

    def _in_memory(self) -> int:
        """The newest step that the nodes were known to hold; 0 where they hold none."""
        progress = self._progress()
        if progress is None or progress.attempt < self._first_on_ray:
            return 0
        return progress.in_memory or 0

    def _progress(self) -> Progress | None:
        return Progress.read(RunFiles(self.settings.run_dir).progress)
