"""Classifies the end of an attempt, by the classes of entrypoint/run/failure_classes.py. Pure."""

from __future__ import annotations

import builtins
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from contract.exit_codes import ExitCode
from contract.launch.log_lines import ERROR_OF_RANK, KILLED_RANK
from entrypoint.job.failures import error_lines
from entrypoint.run.failure_classes import FAILURES, FailureClass


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of the job's log, or an observation of the cluster, that points to a class."""

    failure: FailureClass
    line: str
    address: str | None = None
    """Address of the node that printed the line; None for the head."""
    node: str | None = None
    """Name of the node, for an observation of the cluster."""
    step: int = 0
    """Finished steps of the run at that moment."""
    place: str = ""
    """`path:line` in the user's own code, of the traceback that the line ends."""
    is_raised_there: bool = False
    """The line of that place itself has made the exception, with no other one as its cause."""
    ends_rank: bool = False
    """A rank of the job has ended by this error of its own, so its peers miss it."""


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


@dataclass(frozen=True, slots=True)
class SlowNode:
    """A slow node is to leave for a spare."""

    sentence: str
    node: str


Cause = StopRequested | Hung | WrongStart | WorkerLeaving | ScaleUp | SlowNode
"""Why the supervisor itself ended an attempt."""


@dataclass(frozen=True, slots=True)
class RaisedClass:
    """An exception class that a line of the user's code has raised, by its module."""

    module: str
    """As the traceback has it: `myerrors`, or `lib.errors.Table` for a class in a class."""
    file: str
    """The file with the line."""


NOT_TAKEN = "NOT_TAKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """What is known about the end of an attempt."""

    status: str
    """Ray's job status; LOST if Ray itself went away, NOT_TAKEN if it has never had the job."""
    exit_code: int | None = None
    error_type: str | None = None
    message: str = ""
    """Ray's last message about the job."""
    last_error: str = ""
    """The driver's last own line that is not a warning; lines relayed by Ray do not count."""
    told_error: str = ""
    """The driver's newest line with the form of an error, unless the training went on."""
    told_place: str = ""
    """`path:line` in the user's own code of that error; "" if it is not known."""
    told_is_raised_there: bool = False
    """As in `Evidence.is_raised_there`."""
    evidence: tuple[Evidence, ...] = ()
    """Evidence from shortly before the end, each class once."""
    step: int = 0
    """Finished steps of the whole run."""
    silent_seconds: float = 0.0
    """Seconds from the last sign of life until the end was known."""
    cause: Cause | None = None
    """None if the job ended by itself, or Ray under it."""
    lost_nodes: tuple[str, ...] = ()
    files_gone: str | None = None
    """A sentence that names files of the job that cannot be read any more."""
    unfinished: str = ""
    """A sentence, if exit code 0 came without what a finished job leaves."""
    users_classes: frozenset[RaisedClass] = frozenset()
    """Those of `raised_classes` that a file of the user's defines (`user_modules`)."""
    own_trainer: bool = True
    """The process is the driver of a trainer of this product; else a program of the user's."""


EXIT_CODES: dict[int, FailureClass] = {
    row.driver_code: failure for failure, row in FAILURES.items() if row.driver_code is not None
}

NO_PROGRAM = (126, 127)
"""Exit codes of a shell for a program that may not be executed, and for one that is not there."""

BEFORE_THE_DRIVER = frozenset({"RUNTIME_ENV_SETUP_FAILURE", "JOB_ENTRYPOINT_COMMAND_START_ERROR"})
"""Errors that Ray reports before the driver ran, such as of a log file, a fork or a call to GCS.
The user's command did not cause them: a shell runs it, without a runtime environment."""
SUPERVISOR_LOST = frozenset({"JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE"})

NEAREST_THE_CAUSE = tuple(failure for failure, row in FAILURES.items() if row.is_cause)

USUAL_SIGKILL = "often by the kernel, because memory ran out (OOM)"
"""Who ends a process by signal 9 where no node has counted an OOM kill."""

OF_RAY = re.compile(
    r"Job entrypoint command failed|Running entrypoint for job |\s*$"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\s+(?:DEBUG|INFO|WARNING) \S+\.py:\d+ -- "
)
"""Lines of Ray's message that are no words of the job, or are of Ray's own loggers."""


def classify(result: AttemptResult) -> FailureClass:
    """Return the failure class of a result. The first rule that applies decides.

    First comes what the supervisor itself did or saw, then the driver's exit code, then the
    cluster's state and the log, which may quote errors that did not end the job. It is not usage
    error if the run has finished a step, or if the job's files are gone.
    """
    failure = _by_the_first_rule(result)
    if failure is FailureClass.UNKNOWN and (error_of_code(explain(result, failure), failure).place):
        return FailureClass.CODE
    return FailureClass.STORAGE if failure is FailureClass.USAGE and result.files_gone else failure


def _by_the_first_rule(result: AttemptResult) -> FailureClass:
    if result.status == "SUCCEEDED" and not result.unfinished:
        return FailureClass.FINISHED
    if result.status == NOT_TAKEN:
        return FailureClass.NOT_TAKEN
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
        case SlowNode() if not result.lost_nodes:
            return FailureClass.STRAGGLER
    if result.exit_code in EXIT_CODES and not result.unfinished:
        return EXIT_CODES[result.exit_code]
    seen = _seen(result)
    for failure in NEAREST_THE_CAUSE:
        if failure in seen:
            return failure
    told = FailureClass.USAGE in seen or result.exit_code in NO_PROGRAM
    usage = told and result.step == 0 and not result.unfinished
    return FailureClass.USAGE if usage else FailureClass.UNKNOWN


def _seen(result: AttemptResult) -> set[FailureClass]:
    seen = {found.failure for found in result.evidence}
    if any(found.ends_rank or KILLED_RANK.match(found.line) for found in result.evidence):
        seen.discard(FailureClass.COLLECTIVE)
    if result.lost_nodes or result.status == "LOST" or result.error_type in SUPERVISOR_LOST:
        seen.add(FailureClass.NODE_LOST)
    return seen


OF_CODE = re.compile(
    r"(Type|Attribute|Name|UnboundLocal|Key|Index|Value|ZeroDivision|NotImplemented)Error\b"
)
"""Errors of Python that a second run of the same code and data repeats."""
OF_OWN_CHECK = re.compile(r"((Runtime|Assertion|OS)Error|Exception)\b")
"""Errors that torch and others raise for any cause, but the user's own line for one of its own."""
RAISED = re.compile(r"(?P<module>(?:\w+\.)*)(?P<name>[A-Z]\w*)(?::|$)")
"""An exception as a traceback has it: without a module, it is Python's or the program's own."""
OF_SPAWNED = "__mp_main__."
"""The program's own module, in a process that multiprocessing has spawned."""
OF_TWO_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")
ADDRESS = re.compile(r"\b0x[0-9a-f]+")
"""Of an object, in its own words: another one in each process."""
NUMBER = re.compile(r"\b0x[0-9a-f]+|\d+")
"""In an error at a known line: of a row, or of a value, of which the line may fail for many."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The best evidence for a class."""

    sentence: str
    """One line."""
    place: str = ""
    """`path:line` in the user's own code; "" if it is not known."""
    is_raised_there: bool = False
    """As in `Evidence.is_raised_there`."""
    is_users_class: bool = False
    """A file of the user's defines the exception that is raised there."""


def raised_classes(result: AttemptResult) -> Iterator[RaisedClass]:
    """Yield the classes of a module that the user's own lines have raised."""
    errors = [(one.line.strip(), one.place) for one in result.evidence if one.is_raised_there]
    if result.told_is_raised_there:
        errors.append((result.told_error.strip(), result.told_place))
    yield from filter(None, (_raised_class(*error) for error in errors))


def _raised_class(sentence: str, place: str) -> RaisedClass | None:
    """Return the class of an error; None for one of the program itself or of Python."""
    found = RAISED.match(_told(sentence))
    if found is None or found["module"] in ("", OF_SPAWNED):
        return None
    return RaisedClass(found["module"].rstrip("."), place.rpartition(":")[0])


def _told(sentence: str) -> str:
    """Return an error without the rank that has ended by it."""
    of_rank = ERROR_OF_RANK.match(sentence)
    return of_rank["error"] if of_rank else sentence


def explain(result: AttemptResult, failure: FailureClass) -> Reason:
    """Return the best evidence for this class, and its place in the user's own code."""
    if failure is FailureClass.CODE:  # found among the unknown
        failure = FailureClass.UNKNOWN
    match result.cause:
        case WorkerLeaving(sentence) | WrongStart(sentence):
            return Reason(sentence)
        case Hung(sentence) if failure is FailureClass.HANG:
            before = [found for found in result.evidence if found.failure in NEAREST_THE_CAUSE]
            return Reason(f"{sentence}, after: {before[0].line.strip()}" if before else sentence)
    if failure is FailureClass.NODE_LOST and result.lost_nodes:
        return Reason("; ".join(result.lost_nodes))
    if failure is FailureClass.STORAGE and result.files_gone:
        return Reason(result.files_gone)
    if failure is FailureClass.UNKNOWN and result.unfinished:
        return Reason(result.unfinished)
    by_exit_code = result.exit_code in EXIT_CODES and EXIT_CODES[result.exit_code] is failure
    if by_exit_code and result.last_error:
        is_told = result.last_error == result.told_error
        return Reason(result.last_error.strip(), result.told_place if is_told else "")
    if found := find_evidence(result, failure):
        return _seen_in(found, result)
    if number := _ended_by(result.exit_code):
        sentence = _of_signal("driver" if result.own_trainer else "program", number)
        at_signal = result.told_error.startswith(error_lines.FATAL_SIGNAL)
        return Reason(sentence, result.told_place if at_signal else "")
    if result.evidence:
        return _seen_in(result.evidence[0], result)
    if result.status == "LOST":
        return Reason(result.message)
    if result.told_error:
        error, place = result.told_error.strip(), result.told_place
        is_users = _raised_class(error, place) in result.users_classes
        return Reason(error, place, result.told_is_raised_there, is_users)
    return Reason(_last_words(result))


@dataclass(frozen=True, slots=True)
class CodeError:
    """What identifies an error that the job's own code makes again."""

    what: str = ""
    """Its sentence, without what differs each time; "" if it is none."""
    place: str = ""
    """`path:line` in the user's own code; "" if it is not known."""


def error_of_code(reason: Reason, failure: FailureClass) -> CodeError:
    """Return what identifies an error that the job's own code makes at the same place each time.

    An empty one for an error that the machine, the network or a peer may have caused.
    """
    if failure not in (FailureClass.CODE, FailureClass.UNKNOWN):
        return CodeError()
    told = _told(reason.sentence)
    is_own_check = reason.is_raised_there and _is_own_check(told, reason)
    if not (OF_CODE.match(told) or is_own_check):
        return CodeError()
    differs = NUMBER if reason.place else ADDRESS
    return CodeError(differs.sub("0", told), reason.place)


def _is_own_check(raised: str, reason: Reason) -> bool:
    """Whether the user's own line has raised this for a reason in the code, by its words.

    An OSError that has an error of the system, or its words, is of a machine.
    """
    if (found := RAISED.match(raised)) is None:
        return False
    if error_lines.OF_OTHERS.search(f"{OF_TWO_WORDS.sub(' ', found['name'])} {raised}"):
        return False
    if raised.startswith("OSError:") and error_lines.OF_SYSTEM.search(raised):
        return False
    if OF_OWN_CHECK.match(raised) or reason.is_users_class:
        return True
    # a traceback names no module for classes of the program and for Python's own
    return found["module"] in ("", OF_SPAWNED) and not hasattr(builtins, found["name"])


def _seen_in(found: Evidence, result: AttemptResult) -> Reason:
    line = found.line.strip()
    is_users = _raised_class(line, found.place) in result.users_classes
    return Reason(line, found.place, found.is_raised_there, is_users)


def _last_words(result: AttemptResult) -> str:
    """Return what the driver or Ray said last, for a job that printed no error."""
    lines = [line for line in result.message.splitlines() if not OF_RAY.match(line)]
    if result.exit_code and not result.last_error and not lines:
        return f"the job ended with exit code {result.exit_code} and printed nothing"
    last = result.last_error.strip() or (lines[-1].strip() if lines else "")
    if last and result.exit_code and not error_lines.may_be_error(last):
        return (
            f"the job ended with exit code {result.exit_code} and printed no error; its last line: "
            f"{last}"
        )
    return last or result.status


def find_evidence(result: AttemptResult, failure: FailureClass) -> Evidence | None:
    """Return the evidence for this class; None for UNKNOWN if a signal ended the driver."""
    if failure is FailureClass.UNKNOWN and _ended_by(result.exit_code):
        return None
    return next((found for found in result.evidence if found.failure is failure), None)


def _of_signal(process: str, number: int) -> str:
    """Return that a signal has ended the job's process, and who usually sends SIGKILL."""
    name = next((one.name for one in signal.Signals if one == number), "")
    names = ", ".join(filter(None, (name, signal.strsignal(number))))
    ended = f"the {process} was ended by signal {number} ({names})"
    return f"{ended}: {USUAL_SIGKILL}" if number == signal.SIGKILL else ended


def _ended_by(exit_code: int | None) -> int | None:
    """Return the signal number of an exit code such as -9, or 137 of a shell; else None."""
    if exit_code is None or exit_code == ExitCode.STOPPED:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if number in signal.valid_signals() else None
