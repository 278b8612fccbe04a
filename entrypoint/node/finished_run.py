"""A head that starts for a run which its very command has finished before."""

from __future__ import annotations

import logging

from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.job import command_identity, exported_model
from entrypoint.job.failures.outcome import unsaved
from entrypoint.job.recipes import base as recipes
from entrypoint.node import store_sync
from entrypoint.processes.inbox import Inbox
from entrypoint.run.journal import Journal

log = logging.getLogger(__name__)


def end(settings: Settings, run: RunFiles, journal: Journal, inbox: Inbox) -> ExitCode | None:
    """Return the exit code if this very command has finished the run; None if it goes on."""
    sentence = before(journal, command_identity.fingerprint(settings))
    if not sentence:
        return None
    if lost := exported_model.lost(settings):
        log.warning("%s, but %s", sentence, lost)
        if recipes.load(settings.recipe).latest(settings):
            return None
        log.error("there is no checkpoint to write it from: give another run directory")
        return ExitCode.RUN_DIR
    log.info("%s; a new run needs another ROLLCALL_RUN_DIR", sentence)
    whole = store_sync.upload_rest(settings, run, journal, inbox.stop)
    return ExitCode.FINISHED if whole else unsaved(ExitCode.FINISHED)


def before(journal: Journal, fingerprint: str) -> str | None:
    """Return a sentence if this very command has finished the run before."""
    outcomes = list(journal.landmarks("outcome"))
    if not outcomes:
        return None
    details = outcomes[-1]["details"]
    finished = details.get("exit_code") == ExitCode.FINISHED
    if finished and command_identity.is_same(details.get("command"), fingerprint):
        return f"this run is finished already ({outcomes[-1]['sentence']})"
    return None
