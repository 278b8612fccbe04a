"""Pure: what was seen of an attempt's end → the class of its failure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainer.contract import ExitCode


class FailureClass(StrEnum):
    FINISHED = "finished"
    USAGE = "usage"
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    COLLECTIVE = "collective"
    NODE_LOST = "node_lost"
    GPU_FAULT = "gpu_fault"
    SERVICE = "service"
    HANG = "hang"
    STORAGE = "storage"
    PREEMPTED = "preempted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is known of how an attempt ended."""

    status: str
    """Ray's job status, or LOST where Ray itself went away."""
    exit_code: int | None = None
    error_type: str | None = None
    hints: tuple[FailureClass, ...] = ()
    """What lines of the job's log pointed to, in order, each class once."""
    evidence: str = ""
    """The line that says most, for people."""
    stop_asked: bool = False
    hung_seconds: float | None = None
    lost_nodes: tuple[str, ...] = ()


SIGNS: Mapping[FailureClass, re.Pattern[str]] = {
    failure: re.compile("|".join(patterns))
    for failure, patterns in {
        FailureClass.GPU_OOM: (r"(CUDA|HIP) out of memory", r"torch\.OutOfMemoryError"),
        FailureClass.HOST_OOM: (r"ray\.exceptions\.OutOfMemoryError", r"Cannot allocate memory"),
        FailureClass.GPU_FAULT: (r"\bXid\b", r"uncorrectable ECC", r"fallen off the bus"),
        FailureClass.STORAGE: (r"\[Errno (28|30|116)\]", r"No space left on device"),
        FailureClass.COLLECTIVE: (
            r"NCCL (error|timeout)",
            r"ncclUnhandled",
            r"ProcessGroupNCCL.*timed? ?out",
            r"Gloo.*(timed out|Connection closed)",
            r"DistBackendError",
        ),
        FailureClass.NODE_LOST: (
            r"NodeDiedError",
            # An actor whose constructor raised has a bug, not a lost node.
            r"Actor(Died|Unavailable)Error(?!.*creation task)",
            r"WorkerCrashedError",
            r"node.*(was|is) (dead|terminated)",
        ),
        FailureClass.USAGE: (
            r"^(ModuleNotFoundError|ImportError|SyntaxError):",
            r"error: (unrecognized arguments|the following arguments are required)",
        ),
    }.items()
}


def sign(line: str) -> FailureClass | None:
    """What one line of a job's log points to, whatever the framework."""
    for failure, pattern in SIGNS.items():
        if pattern.search(line):
            return failure
    return None


EXIT_CODES: dict[int, FailureClass] = {
    ExitCode.FINISHED: FailureClass.FINISHED,
    ExitCode.USAGE: FailureClass.USAGE,
    ExitCode.UNREACHABLE: FailureClass.SERVICE,
    ExitCode.RUN_DIR: FailureClass.STORAGE,
    ExitCode.STOPPED: FailureClass.PREEMPTED,
}

BEFORE_THE_DRIVER = frozenset({"RUNTIME_ENV_SETUP_FAILURE", "JOB_ENTRYPOINT_COMMAND_START_ERROR"})
SUPERVISOR_LOST = frozenset({"JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE"})


def classify(ending: Ending) -> FailureClass:
    """The one class of an ending; the first rule that applies decides.

    What the supervisor itself did or saw comes first, then the driver's own word (its exit code),
    then the cluster's state, then the log, which may quote any error that did not end the job.
    """
    if ending.status == "SUCCEEDED":
        return FailureClass.FINISHED
    if ending.stop_asked:
        return FailureClass.PREEMPTED
    if ending.hung_seconds is not None:
        return FailureClass.HANG
    if ending.exit_code in EXIT_CODES:
        return EXIT_CODES[ending.exit_code]
    if ending.error_type in BEFORE_THE_DRIVER:
        return FailureClass.USAGE
    specific = _first(ending.hints, leave_out=FailureClass.NODE_LOST)
    if specific and specific is not FailureClass.USAGE:
        return specific
    if ending.lost_nodes or FailureClass.NODE_LOST in ending.hints:
        return FailureClass.NODE_LOST
    if ending.status == "LOST" or ending.error_type in SUPERVISOR_LOST:
        return FailureClass.NODE_LOST
    return specific or FailureClass.UNKNOWN


def _first(hints: Iterable[FailureClass], *, leave_out: FailureClass) -> FailureClass | None:
    return next((hint for hint in hints if hint is not leave_out), None)
