"""A platform that starts a node again after `rollcall stop`: the run stays stopped."""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from contract.journal_file.index import landmarks
from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.job.supervisor import ENDED_START
from entrypoint.node import start_again

log = logging.getLogger(__name__)

OVER = "`rollcall stop` has ended the run in %s, so this node ends with 0 (%s). %s"
RESUMED = "`rollcall stop` had ended the run in %s, and this start resumes it"


def is_over(settings: Settings) -> bool:
    """Return whether a person has stopped the run of this very start; the log says so.

    A run directory that cannot be read tells nothing.
    """
    run = RunFiles(settings.run_dir)
    with suppress(OSError):
        newest = list(landmarks(run.journal).events(("start", "outcome")))[-1:]
        ended = newest[0]["details"].get(ENDED_START) if newest else None
        if ended is None:
            return False
        if ended == settings.start_id:
            named = f"{_source(settings)}={settings.start_id}"
            log.warning(OVER, run.root, named, _to_resume(settings))
            return True
        log.info(RESUMED, run.root)
    return False


def _source(settings: Settings) -> str:
    """Return the variable that names this start."""
    return settings.variable("start_id") or settings.platform.sources["start_id"]


def _to_resume(settings: Settings) -> str:
    given = settings.variable("start_id")
    if given and settings.platform.name not in start_again.NEW_ID_EACH_TIME:
        return f"To resume, start all nodes with another {given}"
    return f"To resume: {start_again.of_platform(settings, os.environ)}"
