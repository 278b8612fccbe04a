"""Exit codes of the launcher, the trainer and their jobs: what each means and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

RESUMES = "Started again with its run directory, it resumes from its newest checkpoint, if any."
RESUMES_FROM = "Started again with its run directory, it resumes from step {step}."
CORRECT = "Correct the job's command, settings or code, and start it again."
STORAGE = f"Look at the run directory's storage: it is full, read-only or away. {RESUMES}"


class ExitCode(IntEnum):
    """Exit codes of this product's processes; a platform's restart rule can use them."""

    FINISHED = 0
    USAGE = 64
    UNREACHABLE = 69
    JOB_FAILED = 70
    RUN_DIR = 73
    RETRY = 75
    UNFIT = 76
    NOT_ALLOWED = 77
    STOPPED = 143


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an exit code tells."""

    text: str
    """Who ends with it, and why: the row of docs/reference.md."""
    remedy: str = RESUMES
    """What to do about a run that ended with it before an attempt has failed."""


MEANINGS: Mapping[ExitCode, Meaning] = {
    ExitCode.FINISHED: Meaning(
        "the run finished, or `rollcall stop` had ended it and a platform started the node again",
        "",
    ),
    ExitCode.USAGE: Meaning(
        "wrong usage or settings; all faults are listed. A command: no run is named, and none is "
        "here",
        CORRECT,
    ),
    ExitCode.UNREACHABLE: Meaning(
        "at the deadline the head or a service was unreachable, or workers were missing. A "
        "command: no head answers, or the head failed on the request",
        f"Start the missing nodes, or look at the network and the services. {RESUMES}",
    ),
    ExitCode.JOB_FAILED: Meaning(
        "the job failed more often than the restart budget allows",
        f"Read the failure and the last attempt's log, and repair the cause. {RESUMES}",
    ),
    ExitCode.RUN_DIR: Meaning(
        "the run directory cannot be used, or a living head holds it. A command: a file or its "
        "output cannot be written",
        STORAGE,
    ),
    ExitCode.RETRY: Meaning(
        "a temporary error, such as a Ray that does not stay up, or a taken port: start this node "
        "again",
        "Start it again with the same run directory. If it ends so again, read the log that the "
        "first line names, and the head's.",
    ),
    ExitCode.UNFIT: Meaning(
        "this node is not fit: preflight failed, or the head refuses the node's versions. Or a "
        "file or a right is missing outside the run directory",
        f"Replace the node that is not fit; rollcall doctor says why. {RESUMES}",
    ),
    ExitCode.NOT_ALLOWED: Meaning("wrong or missing token, or a certificate that is refused"),
    ExitCode.STOPPED: Meaning(
        "stopped after a save: `rollcall stop`, SIGTERM, Ctrl-C, or a terminal that closed"
    ),
}
