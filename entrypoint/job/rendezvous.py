"""Brings the nodes together before each attempt: roll call, Ray, services, collective check."""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from contract.durations import duration
from contract.launch.places import MOVED
from entrypoint.cluster.roll import RollState
from entrypoint.cluster.server import HeadPhase
from entrypoint.config.settings import PreflightMode, Settings
from entrypoint.job.collective_check import CollectiveCheck
from entrypoint.job.failures import policy
from entrypoint.job.failures.outcome import (
    Outcome,
    RollIncompleteError,
    StorageLostError,
    UnplaceableError,
)
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.base import FilesGoneError, PlacedJob
from entrypoint.job.run_context import RunContext
from entrypoint.machine.inventory import load
from entrypoint.net import wait
from entrypoint.preflight.verdict import Verdict
from entrypoint.processes.inbox import RayEnded
from entrypoint.processes.services import Services
from entrypoint.run import kept_layouts
from entrypoint.run.kept_layouts import KeptLayout

log = logging.getLogger(__name__)

SPARES_SECONDS = 5.0
"""How long the first roll call waits for spares once all workers are there."""
NODE_TIMEOUTS = 2.0
"""Multiple of ROLLCALL_NODE_TIMEOUT to wait for Ray to list the nodes that have joined."""


class Cluster(Protocol):
    """What the supervisor asks of the head's Ray."""

    remedy: str
    """What is done about a Ray that has ended, in words."""

    def alive(self) -> set[str]:
        """Addresses or ids of the living nodes. Raises NotYetError while Ray cannot say."""
        ...

    def ended(self) -> str:
        """Return a sentence if the head's Ray has ended by itself, else ""."""
        ...

    def revive(self) -> None:
        """Restart the head's Ray, or wait until it is there again."""
        ...

    def mark_dead(self, name: str, why: str) -> bool:
        """Have Ray mark its nodes of this name dead. Returns whether there were any."""
        ...


@dataclass(slots=True)
class Rendezvous:
    """`complete` runs before each attempt, `recover` after one that did not end the run."""

    run: RunContext
    cluster: Cluster
    services: Services
    collective: CollectiveCheck
    minimum: int
    """With fewer workers than this at the roll's deadline, the run does not start."""
    job: Settings = field(init=False)
    """The settings, with a job that fits the present nodes."""
    present: tuple[str, ...] | None = field(init=False, default=None)
    """The workers of the last roll; None before this head's first roll."""
    _too_few: int = -1
    """So many workers cannot hold the job: one more is waited for."""
    _refusal: str = ""
    """Why they cannot."""
    _told_layout: tuple[str, str] = ("", "")
    """The flags and the idle GPUs of the newest event of the layout."""
    _told_warnings: set[str] = field(init=False, default_factory=set)
    _given_up: set[str] = field(init=False, default_factory=set)
    """Workers that Ray was told to give up, because a spare has the place."""
    _complete_since: float | None = None
    """When all workers were there first; monotonic clock, s."""
    _unseen_since: float | None = None
    """When Ray was first seen not to list nodes that have joined; monotonic clock, s."""
    _impatient: int = 0
    """How often in a row Ray was restarted because it did not list nodes."""

    def __post_init__(self) -> None:
        self.job = self.run.settings

    def complete(self) -> Outcome | None:
        """Wait until the roll is complete and its nodes reach each other.

        Returns the end of the run if they never do. Raises what the waits raise.
        """
        failures = 0
        while True:
            self.run.control.free_places()
            self.collective.warm_up(
                self.run.control.node_infos()[0], self.run.control.roll().expected
            )
            self._call_the_roll()
            self.run.control.phase = HeadPhase.COLLECTIVE_CHECK
            answer = self.collective.ask(self.run.control.node_infos(), self.run.inbox.stop)
            if answer is None:
                return None
            verdict = answer.verdict
            nodes = (*answer.faulty, *answer.unstarted)
            self.run.journal.record("collective", answer.sentence, verdict=verdict, nodes=nodes)
            if verdict is not Verdict.FAIL or self.run.settings.preflight is PreflightMode.WARN:
                return None
            failures += 1
            workers, budget = self.run.control.roll().present, self.run.settings.max_restarts
            for decision in policy.unreachable(answer, workers, failures, budget):
                if isinstance(decision, Outcome):
                    return decision
                self.record(decision)
                self.recover(decision, failures)

    def recover(
        self, decision: policy.Continuation, failures: int, *, ray_lost: bool = False
    ) -> None:
        """Carry out a decision. `failures`: the number of failures in a row.

        Raises InterruptedWaitError if the node is asked to stop meanwhile.
        """
        self.run.control.phase = HeadPhase.RECOVERING
        if isinstance(decision, policy.Replace):
            self.run.control.evict(decision.worker, decision.sentence)
        if (
            isinstance(decision, policy.Renew)
            and decision.node != self.run.control.node_infos()[0].node
        ):
            self.run.control.renew(decision.node)
        elif ray_lost or isinstance(decision, policy.Renew):
            self._restart_ray()
        if isinstance(decision, policy.Resume) and decision.first_pause:
            pause = wait.backoff(failures, first=decision.first_pause)
            log.info("waiting %.1f s before the next attempt", pause)
            if self.run.inbox.stop.wait(pause):
                raise wait.InterruptedWaitError("asked to stop between two attempts")

    def await_files(self) -> None:
        """Wait until the files that the job's arguments name are there, as on a lost mount.

        Raises StorageLostError after ROLLCALL_REWARD_TIMEOUT.
        """

        def look() -> None:
            try:
                self.run.recipe.look_for_files(self.run.settings)
            except FilesGoneError as gone:
                raise wait.NotYetError(str(gone)) from None

        try:
            look()
        except wait.NotYetError as gone:
            self.run.control.phase = HeadPhase.AWAITING_FILES
            self.run.journal.record("files", f"{gone}; waiting for the job's files")
        else:
            return
        what, timeout = "the job's files", self.run.settings.service_timeout
        try:
            with wait.limited_by("ROLLCALL_REWARD_TIMEOUT"):
                wait.until(what, look, timeout=timeout, stop=self.run.inbox.stop)
        except wait.GaveUpError as error:
            raise StorageLostError(str(error)) from None
        self.run.journal.record("files", "the job's files are there again")

    def record(self, decision: policy.Continuation) -> None:
        answer = type(decision).__name__.lower()
        self.run.journal.record("decision", decision.sentence, answer=answer)

    def _call_the_roll(self) -> None:
        """Wait until the workers have joined, Ray lists them too, and the services answer.

        If the roll was complete before, it waits less long for a missing worker.
        """
        self._too_few, self._refusal = -1, ""
        fits = False
        while not fits:
            self.await_files()
            self.run.control.phase = HeadPhase.ROLL_CALL
            state = self._next_roll()
            present, expected = state.present, state.expected
            self.run.journal.record("roll", str(state), present=list(present), expected=expected)
            fits = self._fit(state)
        for lost, spare in state.replaced:
            sentence = f"{spare}, a spare, takes the place of {lost}"
            self.run.journal.record(MOVED, sentence, lost=lost, node=spare)
        self._given_up.clear()
        self.run.control.hold_places(state.present)
        self.present = state.present
        self.services.wait_ready(self.run.inbox.stop)

    def _next_roll(self) -> RollState:
        """Raises RollIncompleteError or UnplaceableError if too few are there at the deadline."""
        began = time.monotonic() if self._goes_on() else math.inf
        try:
            return wait.until(
                "the roll",
                lambda: self._whole_roll(waited=time.monotonic() - began),
                timeout=self.run.settings.roll_timeout,
                stop=self.run.inbox.stop,
                longest_pause=0.3,
            )
        except wait.GaveUpError:
            state = self.run.control.roll()
            if not state.enough(self.minimum):
                remedy = "start the missing workers, or set ROLLCALL_MIN_WORKERS to need fewer"
                limit = f"{duration(self.run.settings.roll_timeout)} (ROLLCALL_ROLL_TIMEOUT)"
                raise RollIncompleteError(
                    f"the roll is incomplete after {limit}: {state}; {remedy}"
                ) from None
            if self._refusal:
                raise UnplaceableError(self._refusal) from None
            log.warning("starting with fewer workers than expected: %s", state)
            return state

    def _goes_on(self) -> bool:
        """Return whether the run has begun: it had the nodes that it needs."""
        return self.present is not None or self.run.journal.attempts() > 0

    def _fit(self, state: RollState) -> bool:
        """Set `job` as the nodes of this roll can hold it.

        Returns False to call the roll again: the nodes have changed, too few are left of a run that
        has begun, or the job's files are gone. Raises UnplaceableError if the nodes are all, and
        cannot hold the job.
        """
        head = self.run.control.node_infos()[0]
        offers = [info.offer for info in (head, *state.node_infos)]
        recipe, given = self.run.recipe, self.run.settings
        try:
            job = given if state.complete else recipe.fitted(given, offers)
            placed = recipe.placed(job, offers)
            warnings = () if placed.lacking else recipes.warnings(recipe, placed)
        except FilesGoneError:
            return False
        self.job = placed.settings
        if placed.lacking and self.run.control.roll().present == state.present:
            if state.complete or not self._goes_on():
                raise UnplaceableError(placed.refusal)
            self._too_few, self._refusal = len(state.present), placed.refusal
            log.warning("%s: waiting for the other workers", placed.refusal)
        if placed.layout and not placed.lacking:
            self._tell_layout(placed, placed.layout)
        for warning in warnings:
            if warning not in self._told_warnings:
                self._told_warnings.add(warning)
                self.run.journal.record("layout-warning", warning)
        return not placed.lacking

    def _tell_layout(self, placed: PlacedJob, layout: Mapping[str, Any]) -> None:
        """Keep and record the chosen flags and the GPUs without work, if they have changed."""
        chosen, idle = layout["chosen"], layout["idle"] or ""
        self.run.control.idle = idle
        flags = shlex.join(chosen["flags"]) if chosen else ""
        if (flags, idle) == self._told_layout:
            return
        self._told_layout = flags, idle
        why = []
        if chosen:
            kept = KeptLayout(tuple(chosen["flags"]), tuple(chosen["reasons"]))
            again = kept_layouts.keep(self.run.files.layouts, placed.key, kept)
            changed = "again, because the nodes or the flags have changed" if again else ""
            why = [f"chosen {changed or 'for these nodes'}: {flags}", *chosen["reasons"]]
        sentences = [*why, *([idle] if idle else [])]
        if sentences:
            self.run.journal.record("layout", "; ".join(sentences), flags=flags, idle=idle)

    def _whole_roll(self, waited: float) -> RollState:
        self.run.control.release_leaving()
        if ended := self.cluster.ended():
            self.run.journal.record("ray", f"{ended}: {self.cluster.remedy}")
            self._restart_ray()
        state = self.run.control.roll()
        there = len(state.present)
        # Do not wait a second time for workers that were missing before.
        as_before = self.present is not None and there >= len(self.present)
        patience = 0.0 if as_before else self.run.settings.replace_timeout
        shrink = policy.with_fewer(
            there, state.expected, self.minimum, waited=waited, patience=patience
        )
        if there <= self._too_few:
            raise wait.NotYetError(f"{state}; {self._refusal}")
        if not state.complete and shrink is None:
            self._unseen_since = None
            then = f"; after {duration(patience)} (ROLLCALL_REPLACE_TIMEOUT) the run goes on so"
            may_shrink = there >= self.minimum and math.isfinite(waited)
            raise wait.NotYetError(f"{state}{then if may_shrink else ''}")
        self._settle_spares(state)
        try:
            alive, nodes = len(self.cluster.alive()), 1 + there + len(state.spares)
            fewer = shrink is not None or state.replaced
            if alive < nodes or (fewer and alive > nodes):  # it still lists a lost one
                raise wait.NotYetError(f"Ray sees {alive} of {nodes} nodes")
        except wait.NotYetError as unseen:
            self._lose_patience(str(unseen))
            raise
        self._unseen_since, self._impatient = None, 0
        if not set(state.present) <= set((now := self.run.control.roll()).present):
            raise wait.NotYetError(str(now))  # a worker was lost meanwhile
        if shrink is not None and not as_before:
            self.record(shrink)
        return state

    def _settle_spares(self, state: RollState) -> None:
        """Have Ray give up the nodes whose places spares have taken.

        Raises NotYetError while nodes join again, because they offer too little or too much for
        their new places; and for a moment before the first attempt, while spares are not there.
        """
        for lost, spare in state.replaced:
            if lost not in self._given_up:
                self._given_up.add(lost)
                self.cluster.mark_dead(lost, f"{spare} has the place of {lost}, which is lost")
        for node in state.misjoined:
            self.run.control.renew(node)
        if state.misjoined:
            raise wait.NotYetError(f"{', '.join(state.misjoined)} joins again, for its new place")
        now = time.monotonic()
        self._complete_since = self._complete_since or now
        waits = self.present is None and now - self._complete_since < SPARES_SECONDS
        if waits and state.complete and not state.with_spares:
            raise wait.NotYetError(str(state))

    def _lose_patience(self, unseen: str) -> None:
        """Restart Ray if it has not listed nodes that have joined for too long.

        One of Ray's daemons hangs then, on some node, and no process ends to show it.
        """
        now = time.monotonic()
        self._unseen_since = self._unseen_since or now
        waited = now - self._unseen_since
        limit = NODE_TIMEOUTS * self.run.settings.node_timeout * 2**self._impatient
        if waited < limit:
            return
        self._unseen_since, self._impatient = None, self._impatient + 1
        why = f"{unseen}, for {duration(waited)} ({load()}): {self.cluster.remedy}"
        longer = f"now it has {duration(2 * limit)}, by ROLLCALL_NODE_TIMEOUT"
        self.run.journal.record("ray", f"{why}; {longer}")
        self._restart_ray()

    def _restart_ray(self) -> None:
        restart_ray(self.run, self.cluster)


def restart_ray(run: RunContext, cluster: Cluster) -> None:
    """Restart Ray on all nodes. Raises RayFailedError."""
    # By itself, the workers' Ray notices only after a minute that the head's Ray is new.
    run.control.new_incarnation()
    cluster.revive()
    run.inbox.forget(RayEnded)  # a message about the Ray that is gone
