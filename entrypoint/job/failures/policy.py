"""Pure: decides what to do after an attempt, from its failure class and the run's history."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from contract.durations import duration
from contract.exit_codes import ExitCode
from entrypoint.cluster.slow_nodes import OUT_SECONDS
from entrypoint.job import collective
from entrypoint.job.failures.classes import CodeError
from entrypoint.job.failures.outcome import Outcome
from entrypoint.run.failure_classes import FAILURES, FailureClass

NO_ERROR = CodeError()


@dataclass(frozen=True, slots=True)
class History:
    """The run's attempts so far. Both counts include the last attempt."""

    attempts_without_progress: int
    """Attempts in a row that finished no new step."""
    same_class: int
    """Attempts in a row that ended in the same failure class as the last one."""
    max_restarts: int
    same_error: int = 1
    """Attempts in a row that ended with the same error of the code. Unless its line is known, they
    count if they finished no new step."""
    error: CodeError = NO_ERROR
    """The error of the code that ended the last attempt, if one did."""
    saves_itself: bool = False
    """Nobody but the job knows what it has saved, and from where it goes on."""
    lacks_hub: bool = False
    """The last attempt needed a model or a data set of the hub, which did not answer."""


@dataclass(slots=True)
class RestartBudget:
    """Counts attempts without progress against ROLLCALL_MAX_RESTARTS."""

    max_restarts: int
    saves_itself: bool = False
    """As in History."""
    attempts_without_progress: int = 0
    _same_class: int = 0
    _last: FailureClass | None = None
    _same_error: int = 0
    _error: CodeError = NO_ERROR

    def after(
        self, failure: FailureClass, error: CodeError = NO_ERROR, *, progressed: bool
    ) -> History:
        """Count one more attempt. `progressed`: the attempt finished a new step.

        `error`: that of the job's code, if such a one ended it.
        """
        self.attempts_without_progress = 0 if progressed else self.attempts_without_progress + 1
        self._same_class = self._same_class + 1 if failure is self._last else 1
        self._last = failure
        again = error == self._error and bool(error.place or (error.what and not progressed))
        self._same_error = self._same_error + 1 if again else 1
        self._error = error
        counts = self.attempts_without_progress, self._same_class
        return History(*counts, self.max_restarts, self._same_error, error, self.saves_itself)


@dataclass(frozen=True, slots=True)
class Resume:
    """Submit the job again, from the newest complete checkpoint, once the roll is complete."""

    sentence: str
    first_pause: float = 0.0
    """Back off first, since the condition would be the same at once: the first pause in seconds,
    longer after each failure. 0: do not."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Evict a worker, then resume with another one or with the remaining workers."""

    sentence: str
    worker: str


@dataclass(frozen=True, slots=True)
class Swap:
    """Evict a slow worker for a time, then resume with a spare in its place."""

    sentence: str
    worker: str | None
    """None: it stays after all, because no spare is there any more."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Restart Ray on a node, then resume."""

    sentence: str
    node: str


@dataclass(frozen=True, slots=True)
class Shrink:
    """Resume with the remaining workers, in a layout that fits them."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Grow:
    """Resume with all workers, in the requested layout."""

    sentence: str


Continuation = Resume | Replace | Swap | Renew | Shrink | Grow
Decision = Continuation | Outcome

OWN_START = (
    "starting the same command again (it goes on from its own checkpoint, if it looks for one)"
)
OWN_SAVE = "what the job has saved is not known"
PAUSE_SECONDS = 1.0
MEMORY_PAUSE_SECONDS = 16.0
"""What used up a node's memory beside the job, or is left of the job, may be gone by then."""
HUB_PAUSE_SECONDS = 15.0
"""A hub that cannot be reached is no crash: it is as far away at once."""
OUT_OF_MEMORY = (FailureClass.GPU_OOM, FailureClass.HOST_OOM)
"""Another attempt may fit; if it does not, the user must change the job."""


def start(on_disk: int, in_memory: int = 0) -> str | None:
    """Return in words where the next attempt will resume; None: at the beginning.

    `on_disk`: step of the newest complete checkpoint. `in_memory`: the newest step that two nodes
    were known to hold; it may be lost with both. 0: there is none.
    """
    if in_memory > on_disk:
        otherwise = f"step {on_disk}" if on_disk else "the beginning"
        return f"step {in_memory} or a later one that the nodes hold in memory, else {otherwise}"
    return f"step {on_disk}" if on_disk else None


def decide(
    failure: FailureClass,
    history: History,
    from_step: int,
    node: str | None = None,
    *,
    in_memory: int = 0,
) -> Decision:
    """Return what to do after an attempt that ended with `failure`.

    `from_step`: step of the newest complete checkpoint; `in_memory`: the newest step that the nodes
    hold; `node`: the node that the evidence points to, if it points to one.
    """
    if failure is FailureClass.FINISHED:
        return Outcome("finished", ExitCode.FINISHED, "the job has finished")
    if failure is FailureClass.PREEMPTED:
        nothing = OWN_SAVE if history.saves_itself else "no step was saved yet"
        saved = f"step {from_step} is saved" if from_step else nothing
        return Outcome("stopped", ExitCode.STOPPED, saved)
    about = FAILURES[failure]
    if about.is_final:
        return Outcome("failed", about.exit_code, about.reason)
    beginning = start(from_step, in_memory)
    anew = OWN_START if history.saves_itself else "starting again from the beginning"
    where = f"resuming from {beginning}" if beginning else anew
    if failure is FailureClass.SCALED_UP:
        return Grow(f"every worker is there again: {where} with all of them")
    if failure is FailureClass.STRAGGLER:
        return _without_slow(node, where)
    if failure in OUT_OF_MEMORY:
        return _once_more(failure, history, where, node)
    if history.same_error > 1:
        place = history.error.place
        circumstance = f"at {place}" if place else "and without a new step"
        why = f"the code failed with the same error twice in a row, {circumstance}"
        return Outcome("failed", about.exit_code, f"{why}: another try would end the same way")
    in_vain = history.attempts_without_progress
    if in_vain > history.max_restarts:
        attempts = "the attempt" if in_vain == 1 else f"{in_vain} attempts in a row"
        return Outcome(
            "failed",
            about.exit_code,
            f"{about.reason}, and {attempts} brought no new step: "
            "giving up (ROLLCALL_MAX_RESTARTS)",
        )
    if history.lacks_hub and in_vain:
        if history.same_class > 1:
            why = "the hub did not answer, twice in a row, and no step was made: giving up"
            return Outcome("failed", about.exit_code, why)
        wait = duration(HUB_PAUSE_SECONDS)
        return Resume(f"the hub did not answer: {where} once, in {wait}", HUB_PAUSE_SECONDS)
    if failure is FailureClass.GPU_FAULT and node:
        return Replace(f"a GPU of {node} failed: evicting it, {where}", node)
    return Resume(
        f"{about.reason}: {where}",
        PAUSE_SECONDS if in_vain > 0 and failure is not FailureClass.NODE_LOST else 0.0,
    )


def _without_slow(node: str | None, where: str) -> Decision:
    """`node`: the slow one; None if it has to stay after all."""
    if node is None:
        return Swap(f"no spare is there any more, and the slow node stays: {where}", None)
    out = duration(OUT_SECONDS)
    return Swap(f"{node} is slow: evicting it for {out}, {where} with a spare in its place", node)


def with_fewer(
    present: int, expected: int, minimum: int, *, waited: float, patience: float
) -> Shrink | None:
    """Decide whether to resume without a worker that an earlier attempt had; None: wait for it.

    `waited`, `patience`: seconds.
    """
    if present >= expected or present < minimum or waited < patience:
        return None
    noun = "worker" if expected == 1 else "workers"
    return Shrink(
        f"{present} of {expected} {noun} are there after {duration(waited)} "
        "(ROLLCALL_REPLACE_TIMEOUT): going on with them, and with the others from the next "
        "checkpoint after they are back"
    )


def unreachable(
    result: collective.CollectiveResult, workers: Collection[str], failures: int, max_restarts: int
) -> Sequence[Decision]:
    """Decide what to do after the collective check has failed `failures` times in a row.

    `workers`: those on the roll. Neither the head nor a link can be evicted.
    """
    if failures > max_restarts:
        sentence = f"the nodes do not reach each other, {failures} times in a row"
        why = f"{sentence}: {result.sentence} (ROLLCALL_MAX_RESTARTS)"
        return [Outcome("failed", ExitCode.UNFIT, why)]
    if result.unstarted:
        why = "starts no process: restarting it there"
        return [Renew(f"Ray on {node} {why}", node) for node in result.unstarted]
    if faulty_workers := [node for node in result.faulty if node in workers]:
        why = "does not reach the others as it should: evicting it until its checks pass"
        return [Replace(f"{worker} {why}", worker) for worker in faulty_workers]
    return [Resume("the nodes do not reach each other: trying again", PAUSE_SECONDS)]


def _once_more(failure: FailureClass, history: History, where: str, node: str | None) -> Decision:
    what = f"out of memory ({failure})" + (f" on {node}" if node else "")
    if history.same_class > 1 and history.attempts_without_progress:
        why = f"{what}, twice in a row without a new step"
        return Outcome("failed", ExitCode.JOB_FAILED, why)
    pause = MEMORY_PAUSE_SECONDS if failure is FailureClass.HOST_OOM else 0.0
    return Resume(f"{what}: {where} once", pause)
