"""Pure: a failure, the progress since the last one, the history → what to do, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from contract.run_dir import ExitCode
from entrypoint.job import collective
from entrypoint.job.failures.classes import FailureClass


@dataclass(frozen=True, slots=True)
class History:
    """What the run's attempts have shown so far."""

    fruitless: int
    """Attempts in a row, the last one included, that brought no new step."""
    same_class: int
    """Attempts in a row, the last one included, that ended in the last one's class."""
    max_restarts: int


@dataclass(slots=True)
class Track:
    """Keeps the history, attempt after attempt."""

    max_restarts: int
    fruitless: int = 0
    _same_class: int = 0
    _last: FailureClass | None = None

    def after(self, failure: FailureClass, *, gained: bool) -> History:
        """`gained`: whether the attempt that ended so brought a new step."""
        self.fruitless = 0 if gained else self.fruitless + 1
        self._same_class = self._same_class + 1 if failure is self._last else 1
        self._last = failure
        return History(self.fruitless, self._same_class, self.max_restarts)


@dataclass(frozen=True, slots=True)
class Resume:
    """Submit the job again, from the newest whole checkpoint, once the roll is complete."""

    sentence: str
    delayed: bool = False
    """Whether to back off first: trying at once would meet the same condition."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Evict a worker, then resume with another, or with the workers that are left."""

    sentence: str
    worker: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Start Ray anew on a node, then resume."""

    sentence: str
    node: str


@dataclass(frozen=True, slots=True)
class Shrink:
    """Go on with the workers that are left, in a layout that fits them."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Grow:
    """Go on with all workers, in the layout that was asked for."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Stop:
    outcome: str
    exit_code: ExitCode
    sentence: str


Answer = Resume | Replace | Renew | Shrink | Grow
Decision = Answer | Stop

ADVICE = {
    FailureClass.GPU_OOM: "lower --micro_train_batch_size, --micro_rollout_batch_size or"
    " --vllm_gpu_memory_utilization, or raise --zero_stage",
    FailureClass.HOST_OOM: "give the node more memory (for /dev/shm too), or lower"
    " --micro_rollout_batch_size",
}

REASONS = {
    FailureClass.NODE_LOST: "a node was lost",
    FailureClass.COLLECTIVE: "the nodes lost each other on the network",
    FailureClass.GPU_FAULT: "a GPU failed",
    FailureClass.SERVICE: "a service did not answer",
    FailureClass.HANG: "the job made no progress",
    FailureClass.STORAGE: "storage failed",
    FailureClass.UNKNOWN: "the job died",
}

FINAL = {
    FailureClass.USAGE: (
        ExitCode.USAGE,
        "the job cannot run as it is configured; another try would end the same way",
    ),
    FailureClass.WRONG_START: (
        ExitCode.JOB_FAILED,
        "the job does not go on from its checkpoint; it would do steps twice, and overwrite them",
    ),
}
"""What another try cannot change."""


def start(on_disk: int, in_memory: int = 0) -> str | None:
    """Where an attempt will begin, as far as that is known before it has; None: at the beginning.

    `on_disk`: step of the newest whole checkpoint, `in_memory`: the newest that two nodes were
    known to hold, which may be gone with both; 0 where there is none.
    """
    if in_memory > on_disk:
        otherwise = f"step {on_disk}" if on_disk else "the beginning"
        return f"step {in_memory} or a later one that the nodes hold in memory, else {otherwise}"
    return f"step {on_disk}" if on_disk else None


def decide(
    failure: FailureClass,
    history: History,
    from_step: int,
    faulty_worker: str | None = None,
    *,
    in_memory: int = 0,
    short_of_memory: str | None = None,
) -> Decision:
    """`from_step`, `in_memory`: as `start` has them.

    `faulty_worker`: the one whose GPU failed, where that is known; `short_of_memory`: the node.
    """
    if failure is FailureClass.FINISHED:
        return Stop("finished", ExitCode.FINISHED, "the job has finished")
    if failure is FailureClass.PREEMPTED:
        saved = f"step {from_step} is saved" if from_step else "no step was saved yet"
        return Stop("stopped", ExitCode.STOPPED, f"stopped; {saved}")
    if failure in FINAL:
        exit_code, sentence = FINAL[failure]
        return Stop("failed", exit_code, sentence)
    beginning = start(from_step, in_memory)
    where = f"resuming from {beginning}" if beginning else "starting again from the beginning"
    if failure is FailureClass.SCALED_UP:
        return Grow(f"every worker is there again: {where} with all of them")
    if failure in ADVICE:
        return _once_more(failure, history, where, short_of_memory)
    if history.fruitless > history.max_restarts:
        return Stop(
            "failed",
            ExitCode.RUN_DIR if failure is FailureClass.STORAGE else ExitCode.JOB_FAILED,
            f"{REASONS[failure]}, and {history.fruitless} attempts in a row brought no new step: "
            "giving up (ROLLCALL_MAX_RESTARTS)",
        )
    if failure is FailureClass.GPU_FAULT and faulty_worker:
        return Replace(f"a GPU of {faulty_worker} failed: evicting it, {where}", faulty_worker)
    return Resume(
        f"{REASONS[failure]}: {where}",
        delayed=history.fruitless > 0 and failure is not FailureClass.NODE_LOST,
    )


def with_fewer(
    present: int, expected: int, minimum: int, *, waited: float, patience: float
) -> Shrink | None:
    """What to do where a worker is lacking that an earlier attempt had; None: wait for it.

    `waited`, `patience` in seconds.
    """
    if present >= expected or present < minimum or waited < patience:
        return None
    noun = "worker" if expected == 1 else "workers"
    return Shrink(
        f"{present} of {expected} {noun} are there after {waited:.0f} s (ROLLCALL_REPLACE_TIMEOUT):"
        " going on with them, and with the others from the next checkpoint after they are back"
    )


def unreachable(
    answer: collective.Answer, workers: Collection[str], failures: int, max_restarts: int
) -> Sequence[Decision]:
    """The nodes do not reach each other as they should, for the `failures`-th time in a row.

    `workers`: those on the roll; neither the head nor a link is evicted.
    """
    sentence = answer.sentence
    if failures > max_restarts:
        told = f"the nodes do not reach each other, {failures} times in a row: {sentence}"
        return [Stop("failed", ExitCode.UNFIT, f"{told} (ROLLCALL_MAX_RESTARTS)")]
    if answer.unstarted:
        why = "starts no process: starting it anew there"
        return [Renew(f"Ray on {node} {why}", node) for node in answer.unstarted]
    if faulty_workers := [node for node in answer.faulty if node in workers]:
        why = "does not reach the others as it should: evicting it until its checks pass"
        return [Replace(f"{worker} {why}", worker) for worker in faulty_workers]
    return [Resume("the nodes do not reach each other: trying again", delayed=True)]


def _once_more(failure: FailureClass, history: History, where: str, node: str | None) -> Decision:
    what = f"out of memory ({failure})" + (f" on {node}" if node else "")
    if history.same_class > 1:
        return Stop(
            "failed",
            ExitCode.JOB_FAILED,
            f"{what}, twice in a row: {ADVICE[failure]}",
        )
    return Resume(f"{what}: {where} once; {ADVICE[failure]}")
