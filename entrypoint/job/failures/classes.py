"""Pure: what was seen of an attempt's end → the class of its failure."""

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
    GROWN = "grown"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is known of how an attempt ended."""

    status: str
    """Ray's job status, or LOST where Ray itself went away."""
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
    """Between its last sign of life and the moment when its end was known."""
    stop_asked: bool = False
    hung: str | None = None
    """The sentence of the hang watch, where that ended the attempt."""
    wrong_start: str | None = None
    """In a sentence: the run went on from elsewhere than its checkpoint."""
    leaving: str | None = None
    """In a sentence: a worker asked to leave, and the job was stopped for it."""
    grown: str | None = None
    """In a sentence: the workers that were lacking are there, and the job was stopped for them."""
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
"""What failed was Ray's own: the file of a log, a fork, a call to GCS. The command has no part in
it: a shell takes it, whatever it is, and no runtime environment is asked for."""
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


def classify(ending: Ending) -> FailureClass:
    """The one class of an ending; the first rule that applies decides.

    What the supervisor itself did or saw comes first, then the driver's own word (its exit code),
    then the cluster's state and the log, which may quote any error that did not end the job. A run
    that has made a step is not used wrongly, whatever its log says. Nor is one whose files are
    gone.
    """
    failure = _by_the_first_rule(ending)
    return FailureClass.STORAGE if failure is FailureClass.USAGE and ending.files_gone else failure


def _by_the_first_rule(ending: Ending) -> FailureClass:
    if ending.status == "SUCCEEDED":
        return FailureClass.FINISHED
    if ending.wrong_start:
        return FailureClass.WRONG_START
    if ending.stop_asked:
        return FailureClass.PREEMPTED
    if ending.hung:
        broken = FailureClass.GPU_FAULT in _seen(ending)
        return FailureClass.GPU_FAULT if broken else FailureClass.HANG
    if ending.leaving:
        return FailureClass.NODE_LOST
    if ending.grown and not ending.lost_nodes:
        return FailureClass.GROWN
    if ending.exit_code in EXIT_CODES:
        return EXIT_CODES[ending.exit_code]
    seen = _seen(ending)
    for failure in NEAREST_THE_CAUSE:
        if failure in seen:
            return failure
    usage = FailureClass.USAGE in seen and ending.step == 0
    return FailureClass.USAGE if usage else FailureClass.UNKNOWN


def _seen(ending: Ending) -> set[FailureClass]:
    seen = {sign.failure for sign in ending.signs}
    if ending.lost_nodes or ending.status == "LOST" or ending.error_type in SUPERVISOR_LOST:
        seen.add(FailureClass.NODE_LOST)
    return seen


def evidence(ending: Ending, failure: FailureClass) -> str:
    """What says most about an ending of this class, in one line."""
    if failure is FailureClass.NODE_LOST and ending.leaving:
        return ending.leaving
    if failure is FailureClass.WRONG_START and ending.wrong_start:
        return ending.wrong_start
    if failure is FailureClass.HANG and ending.hung:
        before = [sign for sign in ending.signs if sign.failure in NEAREST_THE_CAUSE]
        return f"{ending.hung}, after: {before[0].line.strip()}" if before else ending.hung
    if failure is FailureClass.NODE_LOST and ending.lost_nodes:
        return "; ".join(ending.lost_nodes)
    if failure is FailureClass.STORAGE and ending.files_gone:
        return ending.files_gone
    told = ending.exit_code in EXIT_CODES and EXIT_CODES[ending.exit_code] is failure
    if told and ending.last_error:
        return ending.last_error.strip()
    if sign := sign_of(ending, failure):
        return sign.line.strip()
    if number := _ended_by(ending.exit_code):
        return f"the driver was ended by signal {number} ({signal.strsignal(number)})"
    if ending.signs:
        return ending.signs[0].line.strip()
    if ending.status == "LOST":
        return ending.message
    lines = ending.message.strip().splitlines()
    return ending.last_error.strip() or (lines[-1].strip() if lines else ending.status)


def sign_of(ending: Ending, failure: FailureClass) -> Sign | None:
    """The log's line for this class; for UNKNOWN the driver's signal says more."""
    if failure is FailureClass.UNKNOWN and _ended_by(ending.exit_code):
        return None
    return next((sign for sign in ending.signs if sign.failure is failure), None)


def _ended_by(exit_code: int | None) -> int | None:
    """The signal of -9, or of a shell's 137; None for a program's own exit code."""
    if exit_code is None or exit_code == ExitCode.STOPPED:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if number in signal.valid_signals() else None
