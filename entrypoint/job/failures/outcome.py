"""How a run ends, and with which exit code of all its nodes. Pure.

`policy.py` says it for an attempt; this, for an error that ends the head, and for an end unsaved.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.launch.model_digests import OtherModelError
from entrypoint.job.recipes.base import ArgumentsError, FilesGoneError
from entrypoint.net import wait
from entrypoint.processes.inbox import RayFailedError, UnfitRayError
from entrypoint.run import errors
from entrypoint.run.object_store import StoreError
from entrypoint.run.restore import OtherRunError


class RollIncompleteError(Exception):
    """Too few workers at the deadline; the sentence names who is missing."""


class UnplaceableError(Exception):
    """The nodes of the roll cannot hold the job; says every shortfall."""


class StorageLostError(Exception):
    """Storage did not come back before the deadline."""


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    """finished, failed or stopped."""
    exit_code: ExitCode
    sentence: str


def of_error(error: Exception, run_dir: Path) -> Outcome | None:
    """Return the outcome for an error that ends the supervision; None for a bug of the head."""
    match error:
        case wait.InterruptedWaitError():
            return Outcome("stopped", ExitCode.STOPPED, str(error))
        case wait.GaveUpError() | RollIncompleteError():
            code = ExitCode.UNREACHABLE
        case StorageLostError() | FilesGoneError() | StoreError():
            code = ExitCode.RUN_DIR
        case UnplaceableError() | ArgumentsError() | OtherRunError() | OtherModelError():
            code = ExitCode.USAGE
        case RayFailedError() | UnfitRayError():
            code = error.exit_code
        case OSError():  # such as a run directory that cannot take the journal
            return Outcome("failed", errors.exit_code(error, run_dir), errors.explain(error))
        case _:
            return None
    return Outcome("failed", code, str(error))


def unsaved(code: ExitCode) -> ExitCode:
    """Return the code of a run of whose end something could not be written or uploaded.

    A success becomes 73, so that a restart finishes the run. A failure keeps its own code, which
    says more than 73.
    """
    return ExitCode.RUN_DIR if code == ExitCode.FINISHED else code


def unrecorded(outcome: Outcome, why: str) -> Outcome:
    """Return the outcome of a run whose outcome could not be recorded."""
    name = "failed" if outcome.exit_code == ExitCode.FINISHED else outcome.name
    sentence = f"{outcome.sentence}; the outcome cannot be written down ({why})"
    return Outcome(name, unsaved(outcome.exit_code), sentence)
