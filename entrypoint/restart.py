"""Pure: a failure, the progress since the last one, the history → what to do, and why."""

from __future__ import annotations

from dataclasses import dataclass

from entrypoint.failures import FailureClass
from trainer.contract import ExitCode


@dataclass(frozen=True, slots=True)
class History:
    """What the run's attempts have shown so far."""

    fruitless: int
    """Attempts in a row, the last one included, that brought no new step."""
    same_class: int
    """Attempts in a row, the last one included, that ended in the last one's class."""
    max_restarts: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Submit the job again, from the newest whole checkpoint, once the roll is complete."""

    sentence: str
    delayed: bool = False
    """Whether to back off first: trying at once would meet the same condition."""


@dataclass(frozen=True, slots=True)
class Stop:
    outcome: str
    exit_code: ExitCode
    sentence: str


Decision = Resume | Stop

ADVICE = {
    FailureClass.GPU_OOM: "lower --micro_train_batch_size or --micro_rollout_batch_size, or raise"
    " --zero_stage",
    FailureClass.HOST_OOM: "give the node more memory, or lower --micro_rollout_batch_size",
}

REASONS = {
    FailureClass.NODE_LOST: "a node was lost",
    FailureClass.COLLECTIVE: "the nodes lost each other on the network",
    FailureClass.GPU_FAULT: "a GPU failed",
    FailureClass.SERVICE: "a service did not answer",
    FailureClass.HANG: "the job made no progress",
    FailureClass.STORAGE: "the run directory did not take a write",
    FailureClass.UNKNOWN: "the job died",
}


def decide(failure: FailureClass, history: History, from_step: int) -> Decision:
    """`from_step`: the newest whole checkpoint's step, 0 where there is none."""
    if failure is FailureClass.FINISHED:
        return Stop("finished", ExitCode.FINISHED, "the job has finished")
    if failure is FailureClass.PREEMPTED:
        saved = f"step {from_step} is saved" if from_step else "no step was saved yet"
        return Stop("stopped", ExitCode.STOPPED, f"stopped; {saved}")
    if failure is FailureClass.USAGE:
        return Stop(
            "failed",
            ExitCode.USAGE,
            "the job cannot run as it is configured; another try would end the same way",
        )
    where = f"resuming from step {from_step}" if from_step else "starting again from the beginning"
    if failure in ADVICE:
        if history.same_class > 1:
            return Stop(
                "failed",
                ExitCode.JOB_FAILED,
                f"out of memory ({failure}) twice in a row: {ADVICE[failure]}",
            )
        return Resume(f"out of memory ({failure}): {where} once; {ADVICE[failure]}")
    if history.fruitless > history.max_restarts:
        return Stop(
            "failed",
            ExitCode.RUN_DIR if failure is FailureClass.STORAGE else ExitCode.JOB_FAILED,
            f"{REASONS[failure]}, and {history.fruitless} attempts in a row brought no new step: "
            "giving up (ROLLCALL_MAX_RESTARTS)",
        )
    delayed = history.fruitless > 0 and failure is not FailureClass.NODE_LOST
    return Resume(f"{REASONS[failure]}: {where}", delayed)
