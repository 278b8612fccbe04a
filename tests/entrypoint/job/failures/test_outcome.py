"""How a run ends by an error of the head, or when its end cannot be saved."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.launch.model_digests import OtherModelError
from entrypoint.job.failures.outcome import (
    Outcome,
    RollIncompleteError,
    StorageLostError,
    UnplaceableError,
    of_error,
    unrecorded,
    unsaved,
)
from entrypoint.job.recipes.base import ArgumentsError, FilesGoneError
from entrypoint.net import wait
from entrypoint.processes.inbox import RayFailedError, UnfitRayError
from entrypoint.run.object_store import StoreError
from entrypoint.run.restore import OtherRunError

RUN = Path("/run")


@pytest.mark.parametrize(
    ("error", "name", "code"),
    [
        (wait.InterruptedWaitError("why"), "stopped", ExitCode.STOPPED),
        (wait.GaveUpError("why"), "failed", ExitCode.UNREACHABLE),
        (RollIncompleteError("why"), "failed", ExitCode.UNREACHABLE),
        (StorageLostError("why"), "failed", ExitCode.RUN_DIR),
        (FilesGoneError("why"), "failed", ExitCode.RUN_DIR),
        (StoreError("why"), "failed", ExitCode.RUN_DIR),
        (UnplaceableError("why"), "failed", ExitCode.USAGE),
        (ArgumentsError("why"), "failed", ExitCode.USAGE),
        (OtherRunError("why"), "failed", ExitCode.USAGE),
        (OtherModelError("why"), "failed", ExitCode.USAGE),
        (RayFailedError("why"), "failed", ExitCode.RETRY),
        (UnfitRayError("why", ExitCode.NOT_ALLOWED), "failed", ExitCode.NOT_ALLOWED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_of_the_head_has_its_exit_code(
    error: Exception, name: str, code: ExitCode
) -> None:
    assert of_error(error, RUN) == Outcome(name, code, "why")


def test_an_error_of_the_system_counts_by_its_file_and_a_bug_has_no_outcome() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/run/journal.jsonl")
    outcome = of_error(full, RUN)
    assert outcome is not None
    assert (outcome.name, outcome.exit_code) == ("failed", ExitCode.RUN_DIR)
    assert of_error(KeyError("step"), RUN) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Outcome("finished", ExitCode.FINISHED, "it has"), ("failed", ExitCode.RUN_DIR)),
        (Outcome("failed", ExitCode.USAGE, "it has not"), ("failed", ExitCode.USAGE)),
        (Outcome("stopped", ExitCode.STOPPED, "asked"), ("stopped", ExitCode.STOPPED)),
    ],
    ids=lambda value: value.name if isinstance(value, Outcome) else "",
)
def test_an_end_that_is_not_saved_is_a_success_of_no_node(
    before: Outcome, after: tuple[str, ExitCode]
) -> None:
    told = unrecorded(before, "disk full")
    assert (told.name, told.exit_code) == after
    assert told.sentence == f"{before.sentence}; the outcome cannot be written down (disk full)"
    assert unsaved(before.exit_code) == after[1]
