"""A run whose journal says that a command has begun."""

from __future__ import annotations

from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.job import command_identity
from entrypoint.run.journal import Journal


def begun(settings: Settings) -> None:
    """Write what the first attempt of the settings' job writes."""
    journal = Journal(RunFiles(settings.run_dir).journal, "head")
    journal.attempt = 1
    journal.write("attempt", "", command=command_identity.fingerprint(settings))
    journal.write("resume", "", step=0)
