"""Pure: what is known about an attempt's end → the class of its failure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from contract.run_dir import ExitCode


class FailureClass(StrEnum):
    FINISHED = "finished"
    USAGE = "usage"
    WRONG_START = "wrong_start"
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    COLLECTIVE = "collective"
    NODE_LOST = "node_lost"
    GPU_FAULT = "gpu_fault"
    SERVICE = "service"
    HANG = "hang"
    STORAGE = "storage"
    PREEMPTED = "preempted"
    SCALED_UP = "scaled_up"
    """No failure: an attempt with fewer workers was ended to go on with all of them."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sign:
    """A line of the job's log, or what the cluster saw, that points to a class."""

    failure: FailureClass
    line: str
    address: str | None = None
    """The node that said it, where that is not the head."""
    node: str | None = None
    """Its name, where the cluster said it and not the log."""
    step: int = 0
    """Finished steps of the run when it was read."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The node was asked to stop."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Hung:
    """The hang watch ended the attempt."""

    sentence: str


@dataclass(frozen=True, slots=True)
class WrongStart:
    """The attempt did not begin at its checkpoint."""

    sentence: str


@dataclass(frozen=True, slots=True)
class WorkerLeaving:
    """A worker asked to leave."""

    sentence: str


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """The missing workers are there; the next attempt uses them."""

    sentence: str


Cause = StopRequested | Hung | WrongStart | WorkerLeaving | ScaleUp
"""Why the supervisor itself ended an attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """What is known about the end of an attempt."""

    status: str
    """Ray's job status, or LOST if Ray itself went away."""
    exit_code: int | None = None
    error_type: str | None = None
    message: str = ""
    """Ray's last word on the job."""
    last_error: str = ""
    """The driver's last own line that is no warning, without codes; what Ray relayed is not."""
    signs: tuple[Sign, ...] = ()
    """What log and cluster pointed to shortly before the end, each class once."""
    step: int = 0
    """Finished steps of the whole run."""
    silent_seconds: float = 0.0
    """Seconds from its last sign of life to the moment when its end was known."""
    cause: Cause | None = None
    """None if the job ended by itself, or Ray under it."""
    lost_nodes: tuple[str, ...] = ()
    files_gone: str | None = None
    """In a sentence: files that the job names cannot be read any more."""


EXIT_CODES: dict[int, FailureClass] = {
    ExitCode.FINISHED: FailureClass.FINISHED,
    ExitCode.USAGE: FailureClass.USAGE,
    ExitCode.UNREACHABLE: FailureClass.SERVICE,
    ExitCode.RUN_DIR: FailureClass.STORAGE,
    ExitCode.STOPPED: FailureClass.PREEMPTED,
}

BESIDE_THE_DRIVER = frozenset({"RUNTIME_ENV_SETUP_FAILURE", "JOB_ENTRYPOINT_COMMAND_START_ERROR"})
"""Errors that Ray reports before the driver ran, such as of a log file, a fork or a call to GCS.
They are never the command's fault: a shell runs it, without a runtime environment."""
SUPERVISOR_LOST = frozenset({"JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE"})

NEAREST_THE_CAUSE = (
    FailureClass.GPU_FAULT,
    FailureClass.GPU_OOM,
    FailureClass.HOST_OOM,
    FailureClass.STORAGE,
    FailureClass.NODE_LOST,
    FailureClass.COLLECTIVE,
    FailureClass.SERVICE,
)
"""Where several are seen, the first of these is the cause and the others are what it did: a process
that dies takes its peers' collectives with it."""


def classify(result: AttemptResult) -> FailureClass:
    """The class of a result; the first rule that applies decides.

    What the supervisor itself did or saw comes first, then the driver's own word (its exit code),
    then the cluster's state and the log, which may quote any error that did not end the job. A run
    that has made a step is not used wrongly, whatever its log says. Nor is one whose files are
    gone.
    """
    failure = _by_the_first_rule(result)
    return FailureClass.STORAGE if failure is FailureClass.USAGE and result.files_gone else failure


def _by_the_first_rule(result: AttemptResult) -> FailureClass:
    if result.status == "SUCCEEDED":
        return FailureClass.FINISHED
    match result.cause:
        case WrongStart():
            return FailureClass.WRONG_START
        case StopRequested():
            return FailureClass.PREEMPTED
        case Hung():
            broken = FailureClass.GPU_FAULT in _seen(result)
            return FailureClass.GPU_FAULT if broken else FailureClass.HANG
        case WorkerLeaving():
            return FailureClass.NODE_LOST
        case ScaleUp() if not result.lost_nodes:
            return FailureClass.SCALED_UP
    if result.exit_code in EXIT_CODES:
        return EXIT_CODES[result.exit_code]
    seen = _seen(result)
    for failure in NEAREST_THE_CAUSE:
        if failure in seen:
            return failure
    usage = FailureClass.USAGE in seen and result.step == 0
    return FailureClass.USAGE if usage else FailureClass.UNKNOWN


def _seen(result: AttemptResult) -> set[FailureClass]:
    seen = {sign.failure for sign in result.signs}
    if result.lost_nodes or result.status == "LOST" or result.error_type in SUPERVISOR_LOST:
        seen.add(FailureClass.NODE_LOST)
    return seen


def evidence(result: AttemptResult, failure: FailureClass) -> str:
    """The best evidence for a failure of this class, in one line."""
    match result.cause:
        case WorkerLeaving(sentence) | WrongStart(sentence):
            return sentence
        case Hung(sentence) if failure is FailureClass.HANG:
            before = [sign for sign in result.signs if sign.failure in NEAREST_THE_CAUSE]
            return f"{sentence}, after: {before[0].line.strip()}" if before else sentence
    if failure is FailureClass.NODE_LOST and result.lost_nodes:
        return "; ".join(result.lost_nodes)
    if failure is FailureClass.STORAGE and result.files_gone:
        return result.files_gone
    told = result.exit_code in EXIT_CODES and EXIT_CODES[result.exit_code] is failure
    if told and result.last_error:
        return result.last_error.strip()
    if sign := sign_of(result, failure):
        return sign.line.strip()
    if number := _ended_by(result.exit_code):
        return f"the driver was ended by signal {number} ({signal.strsignal(number)})"
    if result.signs:
        return result.signs[0].line.strip()
    if result.status == "LOST":
        return result.message
    lines = result.message.strip().splitlines()
    return result.last_error.strip() or (lines[-1].strip() if lines else result.status)


def sign_of(result: AttemptResult, failure: FailureClass) -> Sign | None:
    """The log's line for this class; for UNKNOWN the driver's signal says more."""
    if failure is FailureClass.UNKNOWN and _ended_by(result.exit_code):
        return None
    return next((sign for sign in result.signs if sign.failure is failure), None)


def _ended_by(exit_code: int | None) -> int | None:
    """The signal of -9, or of a shell's 137; None for a program's own exit code."""
    if exit_code is None or exit_code == ExitCode.STOPPED:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if number in signal.valid_signals() else None
